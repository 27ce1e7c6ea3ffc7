"""result.json: accuracy, forgetting and costs of a run, computed only from its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedspecial.core.events import of_kind
from fedspecial.core.extension import task_names
from fedspecial.core.privacy import privacy_summary
from fedspecial.errors import InputError
from fedspecial.metrics import costs, evaluation_points, simulated_time
from fedspecial.metrics import matrix as metrics
from fedspecial.metrics.detection import score_detection
from fedspecial.report.frames import data_frame
from fedspecial.report.html import result_html
from fedspecial.report.notes import absent_class_notes, undefined_notes
from fedspecial.report.scale import ACCURACY, Scale
from fedspecial.report.warnings import warnings_of

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run. Accuracies are fractions, sizes are bytes, times are seconds; None means "not defined".

    method, benchmark, seed: what was run
    tasks:                the names of the domains: the columns of the matrix
    matrix:               row i, column j: accuracy on domain j after task i; with another objective than
                          classification its main metric, from which `acc`, `bwt` and `worst_drop` are computed, too;
                          None where the run was extended by domain j only later
    acc:                  mean of the last row
    bwt:                  backward transfer: mean change on the earlier domains since each was learned
    worst_drop:           the most negative of these changes
    forgetting:           mean loss on the earlier domains since each was known best
    rounds_to_best:       rounds until each task's own domain reached its best accuracy, summed over the tasks
    seconds_per_round:    training and server step, without evaluation and checkpoints
    seconds_between_tasks: what a method does when a task begins or ends, per task
    bytes_up, bytes_down: per sampled client and round
    bytes_once:           per client and task, for data that is not sent every round
    client_memory_bytes:  the largest memory of a client, without its data and activations
    client_memory_paper_bytes: the same, counted as in the paper's table
    lam, mu:              mean strength of the pull to the anchor, over the rounds with an anchor
    drift:                distance between the model and the anchor at the end
    refused_updates:      updates that were not used, because something was wrong with them
    rounds_held:          rounds in which the model did not change, because too few valid updates arrived
    model_sha256:         hash of the final model: equal hashes mean equal models, bit for bit
    matrix_masked, acc_masked, bwt_masked: in class-incremental runs, with predictions among the task's classes only
    """

    method: str
    benchmark: str
    seed: int
    tasks: list[str]
    matrix: list[list[float | None]]
    acc: float | None
    bwt: float | None
    worst_drop: float | None
    forgetting: float | None
    rounds_to_best: int | None
    seconds_per_round: float
    seconds_between_tasks: float
    bytes_up: float
    bytes_down: float
    bytes_once: float
    client_memory_bytes: int
    client_memory_paper_bytes: int
    lam: float | None
    mu: float | None
    drift: float | None
    refused_updates: int
    rounds_held: int
    model_sha256: str
    matrix_masked: list[list[float | None]] | None = None
    acc_masked: float | None = None
    bwt_masked: float | None = None
    certificates: list[dict[str, Any]] | None = None
    """For each task the drift and the bounds on it; None if no task had an anchor at the server."""
    warnings: list[str] = field(default_factory=list)
    """What a reader of the numbers must know, such as a task that was not learned."""
    objective: str = "classification"
    metric: dict[str, Any] = field(default_factory=lambda: asdict(ACCURACY))
    """Name and range of the main metric."""
    metrics: dict[str, list[list[Any]]] = field(default_factory=dict)
    """Further metrics: name → matrix like `matrix`; where a metric has a value for each class, each cell is a list."""
    notes: list[str] = field(default_factory=list)
    """Which metrics are not defined on which domains, and which domains lack a class."""
    missing_classes: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Domain → class → training and test samples, for each class that the domain lacks in one part or in both."""
    privacy: dict[str, Any] | None = None
    """ε, δ and what they do not cover, for a run with differential privacy."""
    stream: str = "sharp"
    points: list[str] = field(default_factory=list)
    """The domain that was learned before each row of the matrix, where domains return; otherwise `tasks` are these."""
    average_over_time: list[float | None] = field(default_factory=list)
    """The mean over all domains, learned or not, at every row of the matrix; the last one is `acc`."""
    worst_over_time: list[float | None] = field(default_factory=list)
    """The worst domain at every row of the matrix."""
    forgetting_over_time: list[float | None] = field(default_factory=list)
    """What was lost on the earlier domains since the best value so far, at every row of the matrix."""
    server_lrs: list[float] = field(default_factory=list)
    """γ_G of each task that began, announced or detected."""
    detection: dict[str, Any] | None = None
    """Borders, delays, missed borders and false alarms, where tasks are detected."""
    time: dict[str, Any] | None = None
    """Simulated seconds, work of clients and staleness, with a simulated clock or asynchronous steps."""
    folder: Path | None = field(default=None, compare=False, repr=False)
    """The run directory."""
    load_model: Callable[[], nn.Module] | None = field(default=None, compare=False, repr=False)

    @property
    def rows(self) -> list[str]:
        """The name of the domain that was learned before each row of the matrix."""
        return self.points or self.tasks

    @property
    def scale(self) -> Scale:
        """How values of the main metric are written."""
        return Scale.of(self.metric)

    @cached_property
    def model(self) -> nn.Module:
        """The trained network, in evaluation mode, read from the run directory."""
        if self.load_model is None:
            raise InputError("model: this result was not read from a run directory")
        return self.load_model()

    def to_json(self) -> dict[str, Any]:
        """The content of result.json."""
        content = asdict(replace(self, folder=None, load_model=None))
        return {key: value for key, value in content.items() if key not in ("folder", "load_model")}

    def to_frame(self) -> DataFrame:
        """The accuracy matrix as a pandas table: a row for each task, a column for each domain."""
        return data_frame(self.matrix, index=[f"after {name}" for name in self.rows], columns=self.tasks)

    def __repr__(self) -> str:
        """One line; all fields are in `to_json()`."""
        named = (("ACC", self.acc), ("BWT", self.bwt), ("worst drop", self.worst_drop))
        numbers = ", ".join(f"{name} {self.scale.text(value)}" for name, value in named)
        unit = "per cent" if self.scale.in_percent else self.scale.title
        count = len(self.warnings)
        warned = f", {count} warning{'s' if count > 1 else ''}" if count else ""
        return f"<Result: {self.method} on {self.benchmark}, seed {self.seed}: {numbers} ({unit}){warned}>"

    def _repr_html_(self) -> str:
        return result_html(self)


def result_of(events: Sequence[dict[str, Any]]) -> Result:
    """Compute the result of a finished run."""
    started = of_kind(events, "run_started")[0]
    tasks, rounds = task_names(events), of_kind(events, "round")
    finished = of_kind(events, "task_finished")
    scale = Scale.of(started["metric"]) if "metric" in started else ACCURACY
    points = started.get("visits") or []
    visits = [tasks.index(name) for name in points] or None
    matrix = _matrix(finished, "accuracy", tasks, scale)
    masked = None if finished[0]["accuracy_masked"] is None else _matrix(finished, "accuracy_masked", tasks, scale)
    names = dict.fromkeys(name for row in finished for name in row.get("metrics", {}))
    further = {name: [_known(row["metrics"].get(name, []), tasks) for row in finished] for name in names}
    measured = [len(row["accuracy"]) for row in finished]
    # With the data of all domains in every task there is no earlier domain that could be forgotten.
    in_sequence, visits = ([], None) if started.get("all_domains") else (matrix, visits)
    anchored = [r for r in rounds if r["lam"] is not None]
    missing = _missing_classes(events)
    issued = [event["summary"] for event in of_kind(events, "certificate")]
    return Result(
        method=started["method"],
        benchmark=started["benchmark"],
        seed=started["seed"],
        tasks=tasks,
        matrix=[list(row) for row in matrix],
        acc=metrics.average_accuracy(matrix),
        bwt=metrics.backward_transfer(in_sequence, visits),
        worst_drop=metrics.worst_drop(in_sequence, visits),
        forgetting=metrics.forgetting(in_sequence, visits),
        rounds_to_best=costs.rounds_to_best(rounds, points or tasks),
        seconds_per_round=costs.seconds_per_round(rounds),
        seconds_between_tasks=costs.seconds_between_tasks(of_kind(events, "task_boundary"), len(finished)),
        bytes_up=costs.bytes_per_client(rounds, "up"),
        bytes_down=costs.bytes_per_client(rounds, "down"),
        bytes_once=costs.bytes_once(rounds, of_kind(events, "query"), started["clients"], len(finished)),
        client_memory_bytes=costs.largest(rounds, "client_memory_bytes"),
        client_memory_paper_bytes=costs.largest(rounds, "client_memory_paper_bytes"),
        lam=fmean(r["lam"] for r in anchored) if anchored else _given_lam(started["hyperparameters"].get("lam")),
        mu=_mean_where_defined(anchored, "mu"),
        drift=rounds[-1]["drift"],
        refused_updates=len(of_kind(events, "update_refused")),
        rounds_held=sum(r["held"] for r in rounds),
        model_sha256=of_kind(events, "run_finished")[0]["model_sha256"],
        **_masked(masked, visits, in_sequence=bool(in_sequence)),
        certificates=issued if any(summary["anchored"] for summary in issued) else None,
        objective=started.get("objective", "classification"),
        metric=asdict(scale),
        metrics=further,
        notes=[*undefined_notes({scale.name: matrix, **further}, tasks, measured), *absent_class_notes(missing)],
        missing_classes=missing,
        warnings=warnings_of(events),
        time=simulated_time.summary(events),
        privacy=privacy_summary(charged[-1]) if (charged := of_kind(events, "privacy")) else None,
        stream=started.get("stream", "sharp"),
        points=points,
        average_over_time=evaluation_points.average_over_time(matrix),
        worst_over_time=evaluation_points.worst_over_time(matrix),
        forgetting_over_time=evaluation_points.forgetting_over_time(in_sequence, visits),
        server_lrs=list({r.get("begun") or r["task"]: r["server_lr"] for r in rounds}.values()),
        detection=_detection(events, started, len(rounds)),
    )


def _masked(matrix: metrics.Matrix | None, visits: Sequence[int] | None, *, in_sequence: bool) -> dict[str, Any]:
    """The same with predictions restricted to the classes of the task, in class-incremental runs."""
    if matrix is None:
        return {}
    return {
        "matrix_masked": [list(row) for row in matrix],
        "acc_masked": metrics.average_accuracy(matrix),
        "bwt_masked": metrics.backward_transfer(matrix, visits) if in_sequence else None,
    }


def _matrix(finished: Sequence[dict[str, Any]], key: str, tasks: Sequence[str], scale: Scale) -> metrics.Matrix:
    """The row of each finished task, with values in the range of the metric."""
    return metrics.check([_known(row[key], tasks) for row in finished], scale.low, scale.high, len(tasks))


def _missing_classes(events: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[int]]]:
    started = of_kind(events, "task_started")
    return {event["name"]: found for event in started if (found := event.get("missing_classes"))}


def _given_lam(lam: Any) -> float | None:
    """λ as it was given; nothing where it is measured during the run (`lam=auto`)."""
    return None if isinstance(lam, str) else lam


def _detection(events: Sequence[dict[str, Any]], started: Mapping[str, Any], rounds: int) -> dict[str, Any] | None:
    """How well tasks were detected; None where they are announced."""
    if started.get("detect", "none") == "none":
        return None
    detected = [event["at"] for event in of_kind(events, "task_detected")]
    score = score_detection(
        detected,
        started["borders"],
        rounds=rounds,
        per_domain=started["rounds"],
        change_rounds=started["change_rounds"],
    )
    return {"detector": started["detect"], **score.to_json()}


def _known(row: Sequence[Any], tasks: Sequence[str]) -> list[Any]:
    """A row of a matrix; None for the domains by which the run was extended later."""
    return [*row, *[None] * (len(tasks) - len(row))]


def _mean_where_defined(rounds: Sequence[dict[str, Any]], field: str) -> float | None:
    values = [r[field] for r in rounds if r[field] is not None]
    return fmean(values) if values else None
