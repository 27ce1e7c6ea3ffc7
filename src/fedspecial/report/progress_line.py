"""Progress of a run that was started from Python: one line that is written over, on standard error.

It is shown on a terminal and in a notebook. In a file or a pipe there is nothing to write over, so nothing is shown.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

from fedspecial.core.events import Event, RoundFinished, RunFinished, RunResumed, RunStarted

_WIDTH = 20


def can_show(stream: TextIO) -> bool:
    """Whether the stream is a terminal or the output of a notebook's cell."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel")


class ProgressLine:
    """A listener that draws a bar with the task, the round, the accuracy on the current task and the time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._tasks: list[str] = []
        self._rounds = self._done = self._first = self._length = 0
        self._began = time.monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._tasks, self._rounds, self._began = event.visits or event.tasks, event.rounds, time.monotonic()
        elif isinstance(event, RunResumed):
            self._done = self._first = (event.task - 1) * self._rounds + event.round
        elif isinstance(event, RoundFinished):
            self._done = (event.task - 1) * self._rounds + event.round + 1
            self._draw(event)
        elif isinstance(event, RunFinished) and self._length:
            self._stream.write("\n")
            self._stream.flush()

    def _draw(self, event: RoundFinished) -> None:
        total, name = len(self._tasks) * self._rounds, self._tasks[event.task - 1]
        full = _WIDTH * self._done // total
        each = (time.monotonic() - self._began) / (self._done - self._first)
        accuracy = event.accuracy.get(name)
        shown = "" if accuracy is None else f", accuracy {100 * accuracy:.1f} %"
        text = (
            f"{'█' * full}{'░' * (_WIDTH - full)} task {event.task}/{len(self._tasks)} {name}, round "
            f"{event.round + 1}/{self._rounds}{shown}, {each * (total - self._done):.0f} s left"
        )
        self._stream.write("\r" + text.ljust(self._length))
        self._stream.flush()
        self._length = len(text)
