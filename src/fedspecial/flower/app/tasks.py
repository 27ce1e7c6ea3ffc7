"""A task ends after its rounds, or when the operator says so. Needs neither Flower nor torch."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fedspecial.core.events import read_events
from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError

NEXT_TASK = "next-task"


def end_task(folder: Path) -> int:
    """The operator's word: the task under way ends after the round under way; returns its number."""
    if not (folder / "federation.json").exists():
        raise InputError(f"{folder}: no federation has run there (it has no federation.json)")
    if (folder / "finished.json").exists():
        raise InputError(f"{folder}: the run is finished")
    events = read_events(folder / "events.jsonl") if (folder / "events.jsonl").exists() else []
    started = [event["task"] for event in events if event["event"] == "task_started"]
    if not started:
        raise InputError(f"{folder}: its first task has not begun yet")
    write_atomic(folder / NEXT_TASK, str(started[-1]).encode())
    return int(started[-1])


def told_to_end(folder: Path) -> int | None:
    """The number of the task that the operator has ended, if there is one."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / NEXT_TASK).read_text())
    return None
