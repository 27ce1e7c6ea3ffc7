"""Someone removes the last lines of the audit log while the server is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from flower_fixtures import LostBetween, federate, finished, grid_of

from fedspecial.errors import InputError

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")


def test_a_run_does_not_continue_with_a_log_that_was_cut_from_seven_lines_to_two(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = dict.fromkeys(grid.get_node_ids(), LostBetween(7, 9))
    with pytest.raises(InputError, match="no quorum in task 2 round 1"):
        federate(tmp_path, grid=grid, on_no_quorum="stop")
    grid.faults = {}
    log = tmp_path / "run" / "audit.jsonl"
    whole = log.read_bytes()
    assert len(whole.splitlines()) >= 5
    log.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    with pytest.raises(InputError, match=r"audit\.jsonl: the head \w+ is not in the log: the log was truncated"):
        federate(tmp_path, grid=grid, on_no_quorum="stop")
    log.unlink()
    with pytest.raises(InputError, match=r"audit\.jsonl: the head \w+ is not in the log"):
        federate(tmp_path, grid=grid, on_no_quorum="stop")
    log.write_bytes(whole)
    assert finished(federate(tmp_path, grid=grid, on_no_quorum="stop"))
