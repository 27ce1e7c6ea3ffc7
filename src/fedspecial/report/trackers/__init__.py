"""Trackers: readers of a run's events that send its numbers to TensorBoard, MLflow, Weights & Biases, trackio or a CSV.

Each tracker is one module with a function ``start(TrackedRun) -> Tracker``. A tracker that fails is reported once and
then left alone: it never ends a run, and it never changes a result.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from fedspecial.core.events import Event, RoundFinished, RunFinished, RunResumed, RunStarted, TaskFinished
from fedspecial.errors import InputError, did_you_mean

log = logging.getLogger("fedspecial")

PACKAGES = {"csv": None, "tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb", "trackio": "trackio"}
"""Tracker → the package that it needs; the modules here have the same names with an underscore after them."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker knows when it starts. `step`: the finished rounds of a run that is resumed, 0 for a new one."""

    folder: Path
    settings: Mapping[str, Any]
    step: int


class Tracker(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers by name, after this many rounds of the run."""

    def finish(self) -> None:
        """The run is done."""


def listeners_for(names: Sequence[str], folder: Path) -> tuple[Callable[[Event], None], ...]:
    """A listener for each tracker; an unknown name or a missing package is refused before the run begins."""
    for name in names:
        if name not in PACKAGES:
            known = ", ".join(PACKAGES)
            raise InputError(f"trackers={name}: unknown tracker{did_you_mean(name, PACKAGES)}; known: {known}")
        package = PACKAGES[name]
        if package is not None and find_spec(package) is None:
            raise InputError(f"trackers={name}: the package {package} is not installed (pip install {package})")
    return tuple(TrackerListener(name, folder) for name in dict.fromkeys(names))


class TrackerListener:
    """Starts its tracker with the first numbers of a run, and stops at its first error."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self._started: RunStarted | None = None
        self._step = 0
        self._tracker: Tracker | None = None
        self._failed = False

    def __call__(self, event: Event) -> None:
        if self._failed:
            return
        try:
            self._handle(event)
        except Exception as error:  # whatever a library raises, the run goes on
            self._failed = True
            log.warning("tracker %s stopped: %s: %s", self._name, type(error).__name__, " ".join(str(error).split()))

    def _handle(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._started = event
        elif isinstance(event, RunResumed) and self._started is not None:
            self._step = (event.task - 1) * self._started.rounds + event.round
        elif isinstance(event, (RoundFinished, TaskFinished)):
            self._log(event)
        elif isinstance(event, RunFinished) and self._tracker is not None:
            self._tracker.finish()

    def _log(self, event: RoundFinished | TaskFinished) -> None:
        assert self._started is not None
        if self._tracker is None:
            module = importlib.import_module(f"fedspecial.report.trackers.{self._name}_")
            self._tracker = module.start(TrackedRun(self._folder, asdict(self._started), self._step))
        step, values = numbers_of(event, self._started)
        # Asynchronous tasks may have more steps than planned, and trackers want steps that never go back.
        self._step = max(step, self._step + isinstance(event, RoundFinished))
        self._tracker.log(self._step, values)


def numbers_of(event: RoundFinished | TaskFinished, started: RunStarted) -> tuple[int, dict[str, float]]:
    """The number of finished rounds in all tasks, and what there is to track after them."""
    if isinstance(event, TaskFinished):
        row = zip(started.tasks, event.accuracy, strict=True)
        values = {f"after_task/{name}": float(value) for name, value in row if value is not None}
        return event.task * started.rounds, values
    step = (event.task - 1) * started.rounds + event.round + 1
    optional = {name: getattr(event, name) for name in ("loss", "drift", "lam", "mu")}
    values = {"task": float(event.task), "delta_norm": event.delta_norm, "updates": float(event.num_accepted)}
    values |= {name: float(value) for name, value in optional.items() if value is not None}
    values |= {f"{started.metric['name']}/{name}": value for name, value in event.accuracy.items()}
    return step, values | {f"method/{name}": float(value) for name, value in event.metrics.items()}
