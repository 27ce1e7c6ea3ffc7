"""Every method works with every stream, with detection, in worker processes, and continues after a kill."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from test_every_method import learn, problem_for, without_times

from fedspecial import methods, resume
from fedspecial.core.events import read_events

STREAMS: dict[str, dict[str, Any]] = {
    "blended": {"stream": "blended", "blend_rounds": 3},
    "staggered": {"stream": "staggered", "stagger_rounds": 3},
    "recurring": {"stream": "recurring", "repeats": 2},
    # With a tiny threshold and no pause, nearly every rise is an alarm: tasks begin in the middle of a domain.
    "detected": {"stream": "blended", "blend_rounds": 2, "detect": "loss", "detect_threshold": 0.01, "detect_pause": 2},
}
FAST = ("special", "flwf2t", "srfdil")
"""An anchor, logits that are cached for a client's samples, and samples that are replayed."""

cases = [
    pytest.param(name, kind, marks=() if name in FAST else pytest.mark.slow)
    for name in methods.names()
    for kind in STREAMS
    if not (kind == "detected" and methods.find(name).simulation_only)
]


def settings_of(kind: str) -> dict[str, Any]:
    return {"rounds": 6 if kind == "detected" else 3, "local_epochs": 1, **STREAMS[kind]}


@pytest.mark.parametrize(("name", "kind"), cases)
def test_a_stream_is_learned_and_continued_after_a_kill(name: str, kind: str, tmp_path: Path) -> None:
    """The folder is copied when a checkpoint in the middle of a task has been written, as a kill would leave it."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def copy_in_the_middle(event: Any) -> None:
        if event.event == "round" and (event.task, event.round) == (2, 2):
            shutil.copytree(whole, killed)

    result = learn(whole, name, listeners=[copy_in_the_middle], **settings_of(kind))
    assert len(result.matrix) == (6 if kind == "recurring" else 3)
    again = resume(killed, benchmark=problem_for(name)[0])
    assert again.model_sha256 == result.model_sha256
    assert again.matrix == result.matrix
    assert without_times(killed) == without_times(whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STREAMS)
def test_worker_processes_learn_the_same_model(kind: str, tmp_path: Path) -> None:
    one = learn(tmp_path / "one", "special", **settings_of(kind))
    two = learn(tmp_path / "two", "special", workers=2, **settings_of(kind))
    assert one.model_sha256 == two.model_sha256


def test_false_alarms_begin_tasks_of_the_method(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", lam=0.1, **settings_of("detected"))
    events = read_events(tmp_path / "run" / "events.jsonl")
    begun = [event["begun"] for event in events if event["event"] == "round"]
    alarms = [event for event in events if event["event"] == "task_detected"]
    assert alarms
    assert begun == sorted(begun)
    assert begun[-1] == 1 + len(alarms)
    assert result.server_lrs == pytest.approx([1 / i for i in range(1, begun[-1] + 1)])
    assert result.certificates is not None
    assert [task["status"] for task in result.certificates[1:]] == ["holds"] * len(alarms)
