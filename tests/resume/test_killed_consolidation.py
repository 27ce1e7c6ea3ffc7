"""SIGKILL while the server trains FedCIL's averaged generator on images of the clients' generators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from runs import assert_same_run

from fedspecial.core.events import of_kind, read_events
from processes import ENVIRONMENT, Fork

KILLED = -9
SETTINGS = ["method=fedcil", "generator_width=2", "server_iterations=4", "server_batch=4", "gan_size=8"]

# Each iteration of the consolidation draws one balanced batch: 4 iterations × 3 rounds × 2 tasks.
SCRIPT = """
import itertools, os, signal, sys
from fedspecial.methods import fedcil

number = int(sys.argv.pop(1))
draw, passes = fedcil.balanced, itertools.count(1)

def balanced(*args):
    if next(passes) == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return draw(*args)

fedcil.balanced = balanced
from fedspecial.cli.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("iteration", [2, 19])
def test_a_run_killed_during_consolidation_resumes_to_the_same_result(
    fork: Fork, tiny: list[str], tmp_path: Path, iteration: int
) -> None:
    """In the first round of the first task, and in the second of the second."""
    command = ["run", *tiny, *SETTINGS]
    uninterrupted = fork(*command, f"out={tmp_path / 'uninterrupted'}")
    assert uninterrupted.code == 0, uninterrupted.stderr

    folder = tmp_path / "run"
    argv = [sys.executable, "-c", SCRIPT, str(iteration), *command, f"out={folder}"]
    assert subprocess.run(argv, env=ENVIRONMENT, check=False).returncode == KILLED
    assert len(of_kind(read_events(folder / "events.jsonl"), "round")) == (iteration - 1) // 4

    outcome = fork("resume", folder)
    assert outcome.code == 0, outcome.stderr
    assert_same_run(folder, tmp_path / "uninterrupted")
