"""SIGKILL while the server trains a generator at a task's border."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import assert_same_run

from fedspecial.core.events import of_kind, read_events
from processes import Fork

KILLED = -9
WORDS = ["method=mfcl", "generator_width=4", "latent=8", "synthetic=8", "iterations=10", "model=cnn", "width=4"]
STEPS = 3 * 2 * 3  # of the first task: rounds, clients, local steps


@pytest.mark.parametrize(("policy", "seconds"), [("average", 0), ("mean-only", 0), ("average", 1000)])
def test_a_generator_killed_while_it_learns_learns_the_same_again(
    fork: Fork, tiny: list[str], tmp_path: Path, policy: str, seconds: int
) -> None:
    """With a checkpoint after the last round, and with none in between, so that the task is played again."""
    named = {word.split("=")[0]: word for word in [*tiny[1:], *WORDS, f"batch_norm={policy}"]}
    command = ["run", tiny[0], *(named | {"checkpoint_seconds": f"checkpoint_seconds={seconds}"}).values()]
    whole = fork(*command, f"out={tmp_path / 'whole'}")
    assert whole.code == 0, whole.stderr

    folder = tmp_path / "run"
    assert fork(*command, f"out={folder}", die=["training", STEPS + 6]).code == KILLED
    events = read_events(folder / "events.jsonl")
    assert len(of_kind(events, "round")) == 3
    assert [event["hook"] for event in of_kind(events, "task_boundary")] == ["begin_task"]

    outcome = fork("resume", folder)
    assert outcome.code == 0, outcome.stderr
    assert_same_run(folder, tmp_path / "whole")
