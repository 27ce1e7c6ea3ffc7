"""Progress of runs that were started from Python: one line that is written over, on standard error.

It is shown on a terminal and in a notebook. In a file or a pipe there is nothing to write over, so nothing is shown.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

from fedspecial.core.events import Event, RoundFinished, RunFinished, RunResumed, RunStarted
from fedspecial.report.scale import ACCURACY, Scale

_WIDTH = 20


def can_show(stream: TextIO) -> bool:
    """Whether the stream is a terminal or the output of a notebook's cell."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel")


def _bar(done: int, total: int) -> str:
    full = _WIDTH * done // total
    return "█" * full + "░" * (_WIDTH - full)


def round_of_task(round: int, rounds: int) -> str:
    """The number of a round for people. Asynchronous tasks may have more server steps than planned: then without how
    many there are."""
    return f"{round + 1:2d}/{rounds}" if round < rounds else f"{round + 1:2d}"


class ProgressLine:
    """A listener that draws a bar with the task, the round, the accuracy on the current task and the time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._tasks: list[str] = []
        self._scale = ACCURACY
        self._rounds = self._done = self._first = self._length = 0
        self._began = time.monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._tasks, self._rounds, self._began = event.visits or event.tasks, event.rounds, time.monotonic()
            self._scale = Scale.of(event.metric)
        elif isinstance(event, RunResumed):
            self._done = self._first = (event.task - 1) * self._rounds + event.round
        elif isinstance(event, RoundFinished):
            self._done = (event.task - 1) * self._rounds + min(event.round + 1, self._rounds)
            self._draw(event)
        elif isinstance(event, RunFinished) and self._length:
            self._stream.write("\n")
            self._stream.flush()

    def _draw(self, event: RoundFinished) -> None:
        total, name = len(self._tasks) * self._rounds, self._tasks[event.task - 1]
        each = (time.monotonic() - self._began) / max(1, self._done - self._first)
        value = event.accuracy.get(name)
        shown = "" if value is None else f", {self._scale.title} {self._scale.text(value, 1)}{self._scale.unit}"
        text = (
            f"{_bar(self._done, total)} task {event.task}/{len(self._tasks)} {name}, round "
            f"{round_of_task(event.round, self._rounds).strip()}{shown}, {each * (total - self._done):.0f} s left"
        )
        self._stream.write("\r" + text.ljust(self._length))
        self._stream.flush()
        self._length = len(text)


class JobsLine:
    """The same for several runs, as those of a comparison: the rounds that all of them have finished."""

    def __init__(self, runs: int, stream: TextIO | None = None) -> None:
        self._stream, self._runs, self._shown = stream or sys.stderr, runs, ""

    def update(self, done: int, total: int | None) -> None:
        """total: all rounds; None until the first run has begun"""
        rounds = f"{done} of {total} rounds" if total else "starting"
        text = f"{_bar(done, total or 1)} {self._runs} runs, {rounds}"
        if text != self._shown:
            self._stream.write("\r" + text.ljust(len(self._shown)))
            self._stream.flush()
            self._shown = text

    def close(self) -> None:
        if self._shown:
            self._stream.write("\n")
            self._stream.flush()
