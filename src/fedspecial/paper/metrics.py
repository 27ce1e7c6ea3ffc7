"""The metrics that studies read from finished runs, computed from the event log by the functions behind result.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from fedspecial.core.events import of_kind, read_events
from fedspecial.metrics import simulated_time
from fedspecial.paper import asynchrony
from fedspecial.report.result import Result, result_of

Events = list[dict[str, Any]]


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, read from its event log or from its record (`run_records`).

    recorded_curve: the accuracies on the first two tasks in the rounds of the second, if the run was read from a record
    measured:       the metrics of `FROM_EVENTS`, if the run was read from a record
    """

    folder: Path
    result: Result
    versions: Mapping[str, str]
    recorded_curve: tuple[tuple[float, float], ...] | None = None
    measured: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def read(folder: Path) -> FinishedRun | None:
        """The run, or None if it is not finished."""
        path = folder / "events.jsonl"
        events = read_events(path) if path.exists() else []
        if not of_kind(events, "run_finished"):
            return None
        return FinishedRun(folder, result_of(events), of_kind(events, "run_started")[0]["versions"])

    def events(self) -> Events:
        """The event log; a run that was read from its record has none."""
        if self.recorded_curve is not None:
            return []
        return read_events(self.folder / "events.jsonl")


@dataclass(frozen=True)
class Metric:
    """A number that describes a run. `better`: 1 if higher is better, -1 if lower is better, 0 if neither."""

    title: str
    read: Callable[[FinishedRun], float | None]
    better: int = 1
    scale: float = 100.0
    digits: int = 2


def second_task(run: FinishedRun) -> list[tuple[float, float, float]]:
    """Accuracy on task 1, on task 2 and on both, after every evaluated round of task 2.

    "Both" is the mean of the two, which is the accuracy on their union if both have equally many test samples.
    """
    if len(run.result.tasks) < 2:
        return []
    if run.recorded_curve is not None:
        return [(first, second, (first + second) / 2) for first, second in run.recorded_curve]
    first, second = run.result.tasks[:2]
    curves = [r["accuracy"] for r in of_kind(run.events(), "round") if r["task"] == 2 and second in r["accuracy"]]
    return [(at[first], at[second], (at[first] + at[second]) / 2) for at in curves]


def _of_second_task(column: int, part: Callable[[list[float]], float]) -> Callable[[FinishedRun], float | None]:
    def read(run: FinishedRun) -> float | None:
        curve = [point[column] for point in second_task(run)]
        return part(curve) if curve else None

    return read


def _early(curve: list[float]) -> float:
    return fmean(curve[: max(1, len(curve) // 4)])


def _late_gain(curve: list[float]) -> float:
    return curve[-1] - curve[len(curve) // 2 - 1] if len(curve) > 1 else 0.0


def domain_metric(number: int) -> Metric:
    """Accuracy on domain j (counted from 1) after the last task, A[K][j]."""
    return Metric(f"task {number}", lambda run: run.result.matrix[-1][number - 1])


def _samples_per_client(events: Events) -> float | None:
    """Training samples that a client sees in the whole run, on average over clients."""
    tasks = of_kind(events, "task_started")
    return sum(task["samples"] for task in tasks) / of_kind(events, "run_started")[0]["clients"] if tasks else None


def _mean_steps(events: Events) -> float | None:
    """Local steps of a client in a round, on average."""
    rounds = of_kind(events, "round")
    return fmean(each["mean_steps"] for each in rounds) if rounds else None


FROM_EVENTS: Mapping[str, Callable[[Events], float | None]] = {
    "simulated_time": simulated_time.total_time,
    "client_work": simulated_time.client_work,
    "time_to_target": lambda events: asynchrony.to_target(events, work=False),
    "work_to_target": lambda events: asynchrony.to_target(events, work=True),
    "staleness": simulated_time.mean_staleness,
    "samples_per_client": _samples_per_client,
    "mean_steps": _mean_steps,
}
"""Metrics that result.json does not have; a record contains them."""


def from_events(run: FinishedRun) -> dict[str, float]:
    """All metrics of `FROM_EVENTS` that the run has."""
    if run.recorded_curve is not None:
        return dict(run.measured)
    events = run.events()
    found = {key: compute(events) for key, compute in FROM_EVENTS.items()}
    return {key: value for key, value in found.items() if value is not None}


def _reader(key: str) -> Callable[[FinishedRun], float | None]:
    def read(run: FinishedRun) -> float | None:
        return FROM_EVENTS[key](run.events()) if run.recorded_curve is None else run.measured.get(key)

    return read


MIB = 1 / 2**20

METRICS: Mapping[str, Metric] = {
    "acc": Metric("ACC", lambda run: run.result.acc),
    "bwt": Metric("BWT", lambda run: run.result.bwt),
    "worst_drop": Metric("worst drop", lambda run: run.result.worst_drop),
    "acc_masked": Metric("ACC, masked", lambda run: run.result.acc_masked),
    "bwt_masked": Metric("BWT, masked", lambda run: run.result.bwt_masked),
    "rounds_to_best": Metric("rounds to best", lambda run: run.result.rounds_to_best, -1, 1.0, 1),
    "seconds_per_round": Metric("s / round", lambda run: run.result.seconds_per_round, -1, 1.0),
    "memory": Metric("memory, MiB", lambda run: run.result.client_memory_paper_bytes, -1, MIB),
    "memory_all": Metric("total memory, MiB", lambda run: run.result.client_memory_bytes, -1, MIB),
    "bytes_up": Metric("up, MiB", lambda run: run.result.bytes_up, -1, MIB),
    "bytes_down": Metric("down, MiB", lambda run: run.result.bytes_down, -1, MIB),
    "bytes_once": Metric("per task, MiB", lambda run: run.result.bytes_once, -1, MIB),
    "seconds_between_tasks": Metric("s between tasks", lambda run: run.result.seconds_between_tasks, -1, 1.0),
    "simulated_time": Metric("time, s", _reader("simulated_time"), -1, 1.0, 1),
    "client_work": Metric("client work, s", _reader("client_work"), -1, 1.0, 1),
    "time_to_target": Metric("time to target, s", _reader("time_to_target"), -1, 1.0, 1),
    "work_to_target": Metric("work to target, s", _reader("work_to_target"), -1, 1.0, 1),
    "staleness": Metric("mean staleness", _reader("staleness"), 0, 1.0),
    "samples_per_client": Metric("samples per client", _reader("samples_per_client"), 0, 1.0, 1),
    "mean_steps": Metric("local steps", _reader("mean_steps"), 0, 1.0),
    "first_early": Metric("task 1, early", _of_second_task(0, _early)),
    "second_early": Metric("task 2, early", _of_second_task(1, _early)),
    "first_end": Metric("task 1, end", _of_second_task(0, lambda curve: curve[-1])),
    "second_end": Metric("task 2, end", _of_second_task(1, lambda curve: curve[-1])),
    "union_end": Metric("both tasks, end", _of_second_task(2, lambda curve: curve[-1])),
    "first_gain": Metric("task 1, late gain", _of_second_task(0, _late_gain)),
}


def metric(key: str) -> Metric:
    return domain_metric(int(key.removeprefix("task:"))) if key.startswith("task:") else METRICS[key]
