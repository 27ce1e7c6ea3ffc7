"""Progress of runs: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from fedspecial.core.events import (
    CertificateIssued,
    DataNotice,
    EngineNotice,
    Event,
    RoundFinished,
    RunResumed,
    RunStarted,
    TaskStarted,
    UpdateRefused,
    WorkerLost,
)
from fedspecial.core.extension import RunExtended
from fedspecial.core.stream_events import TaskDetected
from fedspecial.report.progress_line import round_of_task
from fedspecial.report.scale import ACCURACY, Scale


def _bar(console: Console, *more: ProgressColumn) -> Progress:
    """Narrow enough that the time left can be read on a terminal of 80 columns."""
    text = TextColumn("{task.description}", markup=False)
    return Progress(text, BarColumn(20), *more, TimeRemainingColumn(), TextColumn("left"), console=console)


class RunProgress:
    """A listener that shows task, round, accuracy on the current task and the time left."""

    def __init__(self, console: Console, folder: Path) -> None:
        self._console, self._folder = console, folder
        self._tasks: list[str] = []
        self._scale = ACCURACY
        self._rounds = self._done = self._first = 0
        self._began = time.monotonic()
        self._bar = _bar(console) if console.is_terminal else None

    @contextmanager
    def showing(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._start(event)
        elif isinstance(event, (DataNotice, EngineNotice)):
            self._say(event.text)
        elif isinstance(event, WorkerLost):
            self._say(f"{event.job}: its worker was lost ({event.reason}, attempt {event.attempt})")
        elif isinstance(event, RunResumed):
            self._done = self._first = (event.task - 1) * self._rounds + event.round
            self._say(f"continuing with task {event.task}, round {event.round + 1}")
        elif isinstance(event, RunExtended):
            self._say(f"extended by {', '.join(event.tasks)}")
        elif isinstance(event, TaskStarted):
            self._say(f"task {event.task}: {event.name}, {event.samples:,} training samples")
        elif isinstance(event, TaskDetected):
            self._say(f"task {event.begun} begins: alarm at {100 * event.share:.0f} % of the last clients")
        elif isinstance(event, UpdateRefused):
            when = "boundary" if event.round is None else f"round {event.round + 1}"
            self._say(f"task {event.task} {when}: client {event.client} left out: {event.reason}")
        elif isinstance(event, RoundFinished):
            self._round(event)
        elif isinstance(event, CertificateIssued) and event.summary["status"] not in ("not anchored", "not measured"):
            self._say(certificate_line(event))

    def _start(self, event: RunStarted) -> None:
        self._tasks, self._rounds, self._began = event.visits or event.tasks, event.rounds, time.monotonic()
        self._scale = Scale.of(event.metric)
        names = " → ".join(self._tasks)
        self._say(f"run directory: {self._folder}")
        self._say(f"{event.method} on {event.benchmark}, seed {event.seed}, {event.num_weights:,} weights: {names}")
        if self._bar is not None:
            self._bar.start()
            self._line = self._bar.add_task("starting", total=len(self._tasks) * event.rounds)

    def _round(self, event: RoundFinished) -> None:
        self._done = (event.task - 1) * self._rounds + min(event.round + 1, self._rounds)
        if event.held:
            self._say(f"task {event.task} round {event.round + 1}: no usable update, the model stays as it was")
        name = self._tasks[event.task - 1]
        accuracy, scale = event.accuracy.get(name), self._scale
        shown = "" if accuracy is None else f"{scale.title} {scale.text(accuracy, 1):>5s}{scale.unit}"
        text = f"task {event.task}/{len(self._tasks)} {name}  round {round_of_task(event.round, self._rounds)}  {shown}"
        if self._bar is not None:
            self._bar.update(self._line, completed=self._done, description=text)
            return
        each = (time.monotonic() - self._began) / max(1, self._done - self._first)
        left = each * (len(self._tasks) * self._rounds - self._done)
        self._console.print(f"{text}  {left:.0f} s left", markup=False)

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False)


def certificate_line(event: CertificateIssued) -> str:
    """The certificate of a task in one line: the measured drift and its bound, or the condition that was violated."""
    summary = event.summary
    for kind, cause in (("bug", "this is a bug in the run"), ("constant", "a constant is wrong")):
        broken = [violation for violation in summary["violated"] if violation["kind"] == kind]
        if broken:
            more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
            return f"task {event.task}: CERTIFICATE VIOLATED, {cause}: {broken[0]['message']}{more}"
    bound = summary["recursion_bound"]
    return f"task {event.task}: distance to the anchor {summary['drift']:.4g}, bound {bound:.4g} (weights only)"


class JobsProgress:
    """Progress of several runs at the same time, in rounds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        rounds = TextColumn("{task.completed:.0f} of {task.total:.0f} rounds")
        self._bar = _bar(console, rounds) if console.is_terminal else None
        self._runs = self._tenths = 0

    @contextmanager
    def showing(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.stop()

    def update(self, runs: int, done: int, total: int | None) -> None:
        """runs: how many · done: rounds finished by all of them · total: all rounds, None until that is known"""
        if not self._runs:
            self._begin(runs)
        if self._bar is not None:
            self._bar.update(self._line, completed=done, total=total or max(1, done))
        elif total and done * 10 // total > self._tenths:
            self._tenths = done * 10 // total
            self._console.print(f"{done} of {total} rounds", markup=False)

    def _begin(self, runs: int) -> None:
        self._runs = runs
        if self._bar is None:
            self._console.print(f"{runs} runs", markup=False)
            return
        self._bar.start()
        self._line = self._bar.add_task(f"{runs} runs", total=1)
