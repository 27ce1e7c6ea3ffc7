"""SIGKILL while the server trains a generator at the end of a task."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import assert_same_run

from fedspecial.core.events import of_kind, read_events
from processes import Fork

KILLED = -9
SETTINGS = ["method=mfcl", "generator_width=4", "latent=8", "synthetic=8", "iterations=10", "model=cnn", "width=4"]
STEPS = 3 * 2 * 3  # of the first task: rounds, clients, local steps


@pytest.mark.parametrize(("policy", "seconds"), [("average", 0), ("mean-only", 0), ("average", 1000)])
def test_a_run_killed_while_the_generator_trains_resumes_to_the_same_result(
    fork: Fork, tiny: list[str], tmp_path: Path, policy: str, seconds: int
) -> None:
    """With a checkpoint after every round, and without one, so that the task is repeated."""
    settings = {setting.split("=")[0]: setting for setting in [*tiny[1:], *SETTINGS, f"batch_norm={policy}"]}
    command = ["run", tiny[0], *(settings | {"checkpoint_seconds": f"checkpoint_seconds={seconds}"}).values()]
    uninterrupted = fork(*command, f"out={tmp_path / 'uninterrupted'}")
    assert uninterrupted.code == 0, uninterrupted.stderr

    folder = tmp_path / "run"
    assert fork(*command, f"out={folder}", kill_at=["training", STEPS + 6]).code == KILLED
    events = read_events(folder / "events.jsonl")
    assert len(of_kind(events, "round")) == 3
    assert [event["hook"] for event in of_kind(events, "task_boundary")] == ["begin_task"]

    outcome = fork("resume", folder)
    assert outcome.code == 0, outcome.stderr
    assert_same_run(folder, tmp_path / "uninterrupted")
