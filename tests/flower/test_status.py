"""`fedspecial flower status`: the state of a federation from its files."""

from __future__ import annotations

import json
import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import SHORT, SITES, federate, grid_of, in_training
from typer.testing import CliRunner

from fedspecial.cli.main import app
from fedspecial.core.events import RoundFinished
from fedspecial.flower.app import watched_grid
from fedspecial.flower.grid import lost
from fedspecial.ui.status import metrics_server, prometheus_text, status_of, status_text

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")
PRIVATE = {**SHORT, "dp_clip": 1, "dp_noise_multiplier": 2}


def cli(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["flower", "status", *map(str, arguments)])


@pytest.fixture(scope="module")
def seen(rendered: None, unpictured: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The status while the server still runs, and the run directory: east never answers a training request."""
    folder = tmp_path_factory.mktemp("federation")
    grid = grid_of(folder)
    grid.faults[list(grid.contexts)[3]] = in_training(lost)
    found: list[dict[str, Any]] = []

    def look(event: Any) -> None:
        if isinstance(event, RoundFinished):
            found.append(status_of(folder / "run"))

    return found, federate(folder, grid=grid, listeners=(look,), **PRIVATE)  # type: ignore[return-value]


def test_a_running_federation_shows_who_is_connected_and_who_is_late(seen: Any) -> None:
    running = seen[0][0]
    assert running["state"] == "running"
    rows = {row["name"]: row for row in running["sites"]}
    assert set(rows) == set(SITES)
    assert all(row["connected"] for row in rows.values())
    assert rows["east"]["missed"] == 1
    assert rows["east"]["used"] == 0
    assert rows["east"]["last_reason"] == "no reply before the deadline"
    assert rows["north"]["used"] == 1


def test_a_finished_federation_shows_accuracies_gate_privacy_and_audit_log(seen: Any) -> None:
    status = status_of(seen[1])
    assert status["state"] == "finished"
    assert set(status["accuracy"]["paper"]) == {"all sites", *SITES}
    assert status["gate"]["publish"]
    assert float(status["privacy"]["ε"]) > 0
    assert status["audit"]["state"] == "verified"
    assert status["rounds"]["last"]["quorum"] == 2
    text = status_text(status)
    for part in ("finished, task 1 round 1: completed", "north: ", "gate after task 1: published", "privacy: ε "):
        assert part in text
    assert "lines signed with the key" in text


def test_each_site_s_last_answer_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_grid, "_WRITE_SECONDS", 0.0)
    federate(tmp_path, **SHORT, eval_every=1)
    noted = json.loads((tmp_path / "run" / "sites.json").read_bytes())["sites"]
    assert set(noted) == set(SITES)
    assert all(row["last_reply"] and row["reply_seconds"] >= 0 for row in noted.values())


def test_a_long_round_shows_who_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_WRITE_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(watched_grid, name, 0.0)
    grid = grid_of(tmp_path)
    grid.faults[list(grid.contexts)[3]] = in_training(lost)
    waiting: list[float] = []
    pull = grid.pull_messages

    def look(message_ids: Any) -> Any:
        if (tmp_path / "run" / "audit.jsonl").exists():
            east = [row for row in status_of(tmp_path / "run")["sites"] if row["name"] == "east"]
            waiting.extend(row["waiting_seconds"] or 0.0 for row in east)
        return pull(message_ids)

    grid.pull_messages = look  # type: ignore[method-assign]
    federate(tmp_path, grid=grid, **{**SHORT, "reply_seconds": 0.8})
    assert max(waiting) > 0.3


def test_json_is_the_same_content(seen: Any) -> None:
    done = cli(seen[1], "--json")
    assert json.loads(done.output) == json.loads(json.dumps(status_of(seen[1])))


def test_prometheus_gets_numbers_from_this_machine_only(seen: Any) -> None:
    server = metrics_server(seen[1], 0)
    assert server.server_address[0] == "127.0.0.1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(f"{address}/metrics", timeout=30) as reply:
            text = reply.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/other", timeout=30)
        rebound = urllib.request.Request(f"{address}/metrics", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(rebound, timeout=30)
    finally:
        server.shutdown()
        server.server_close()
    assert 'fedspecial_site_updates_total{site="north"} 1' in text
    assert 'fedspecial_site_rounds_late{site="east"} 1' in text
    assert "fedspecial_privacy_epsilon{} " in text
    assert "fedspecial_task{} 1\n" in text
    assert "fedspecial_round{} 1\n" in text
    assert float(text.split('fedspecial_site_last_reply_timestamp_seconds{site="north"} ')[1].split()[0]) > 1.7e9
    assert text == prometheus_text(status_of(seen[1]))


def test_an_epsilon_that_is_not_finite_is_left_out(seen: Any) -> None:
    status = status_of(seen[1])
    text = prometheus_text({**status, "privacy": {**status["privacy"], "ε": "–"}})
    assert "epsilon" not in text
    assert "fedspecial_running{} 0\n" in text


def test_another_folder_is_one_line(tmp_path: Path) -> None:
    done = cli(tmp_path)
    assert done.exit_code != 0
    assert "not the run directory of a federation (it has no audit.jsonl)" in done.output
    assert "expected a port" in cli(tmp_path, "--serve", "70000").output


def test_a_log_that_lost_its_last_lines_is_not_shown_as_verified(seen: Any, tmp_path: Path) -> None:
    """A truncated chain is consistent; finished.json and the checkpoint have the head that is missing in it."""
    run = Path(shutil.copytree(seen[1], tmp_path / "run"))
    rows = (run / "audit.jsonl").read_bytes().splitlines(keepends=True)
    (run / "audit.jsonl").write_bytes(b"".join(rows[:3]))
    for name in ("finished.json", "checkpoint"):
        found = status_of(run)
        assert found["audit"]["state"] == "broken", name
        assert "the log was truncated" in status_text(found)
        assert "fedspecial_audit_log_intact{} 0" in prometheus_text(found)
        (run / "finished.json").unlink(missing_ok=True)
