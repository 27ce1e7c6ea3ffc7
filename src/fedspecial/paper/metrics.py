"""The metrics that studies read from finished runs, computed from the event log by the functions behind result.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    """

    folder: Path
    result: Result
    versions: Mapping[str, str]
    recorded_curve: tuple[tuple[float, float], ...] | None = None

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


def _to_target(*, work: bool) -> Callable[[FinishedRun], float | None]:
    return lambda run: asynchrony.to_target(run.events(), work=work)


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
    "simulated_time": Metric("time, s", lambda run: simulated_time.total_time(run.events()), -1, 1.0, 1),
    "client_work": Metric("client work, s", lambda run: simulated_time.client_work(run.events()), -1, 1.0, 1),
    "time_to_target": Metric("time to target, s", _to_target(work=False), -1, 1.0, 1),
    "work_to_target": Metric("work to target, s", _to_target(work=True), -1, 1.0, 1),
    "staleness": Metric("mean staleness", lambda run: simulated_time.mean_staleness(run.events()), 0, 1.0),
    "first_early": Metric("task 1, early", _of_second_task(0, _early)),
    "second_early": Metric("task 2, early", _of_second_task(1, _early)),
    "first_end": Metric("task 1, end", _of_second_task(0, lambda curve: curve[-1])),
    "second_end": Metric("task 2, end", _of_second_task(1, lambda curve: curve[-1])),
    "union_end": Metric("both tasks, end", _of_second_task(2, lambda curve: curve[-1])),
    "first_gain": Metric("task 1, late gain", _of_second_task(0, _late_gain)),
}


def metric(key: str) -> Metric:
    return domain_metric(int(key.removeprefix("task:"))) if key.startswith("task:") else METRICS[key]
