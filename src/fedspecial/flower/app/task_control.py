"""Ending a task early at the operator's request. Needs neither Flower nor torch."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fedspecial.core.events import read_events
from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError

_REQUEST = "next-task"


def check_federation(folder: Path) -> None:
    if not (folder / "federation.json").exists():
        raise InputError(f"{folder}: not the run directory of a federation (it has no federation.json)")


def request_task_end(folder: Path) -> int:
    """Ask a running federation to end its current task after the current round; returns the task's number."""
    check_federation(folder)
    if (folder / "finished.json").exists():
        raise InputError(f"{folder}: the run is finished")
    events = read_events(folder / "events.jsonl") if (folder / "events.jsonl").exists() else []
    started = [event["task"] for event in events if event["event"] == "task_started"]
    if not started:
        raise InputError(f"{folder}: the first task has not started yet")
    write_atomic(folder / _REQUEST, str(started[-1]).encode())
    return int(started[-1])


def requested_task_end(folder: Path) -> int | None:
    """The number of the task that the operator asked to end, if any."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / _REQUEST).read_text())
    return None
