"""Everything that happens in a run is an event: one JSON line, appended in order. Results and figures use only these.

Fields that begin with ``seconds`` are wall-clock times; every other field is the same in a resumed run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from fedspecial.core.anchored import AnchoredPart


class Event(Protocol):
    event: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True)
class RunStarted:
    """metric: name and range of the main metric of the objective; the fields `accuracy` of other events contain it
    visits: the domains as they are learned, where they return. borders: the rounds in which another domain begins
    (where tasks are detected). change_rounds: rounds around a border in which clients change."""

    event: ClassVar[str] = "run_started"
    method: str
    hyperparameters: dict[str, Any]
    benchmark: str
    seed: int
    tasks: list[str]
    rounds: int
    clients: int
    num_weights: int
    num_buffers: int
    layout: str
    versions: dict[str, str]
    objective: str = "classification"
    metric: dict[str, Any] = field(default_factory=lambda: {"name": "accuracy", "low": 0.0, "high": 1.0})
    num_frozen: int = 0
    frozen_sha256: str | None = None
    all_domains: bool = False
    stream: str = "sharp"
    visits: list[str] = field(default_factory=list)
    change_rounds: int = 0
    detect: str = "none"
    borders: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class DataNotice:
    """Something about the data that the user should know, such as samples that were skipped."""

    event: ClassVar[str] = "data_notice"
    text: str


@dataclass(frozen=True)
class RunResumed:
    """Sent to listeners only: the event log of a resumed run equals that of an uninterrupted one."""

    event: ClassVar[str] = "run_resumed"
    task: int
    round: int


@dataclass(frozen=True)
class TaskStarted:
    """majority: the share of the most frequent class among the domain's test samples, None where it is not known.
    missing_classes: class → training and test samples, for each class that the domain lacks in one part or in both."""

    event: ClassVar[str] = "task_started"
    task: int
    name: str
    num_classes: int
    samples: int
    majority: float | None = None
    missing_classes: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class UpdateRefused:
    """An update of a round was not used, or the reply to a query, where `round` is None."""

    event: ClassVar[str] = "update_refused"
    task: int
    round: int | None
    client: int
    reason: str


@dataclass(frozen=True)
class EngineStarted:
    """How this part of the run is executed. It does not change the result, so it differs between equal runs."""

    event: ClassVar[str] = "engine_started"
    workers: int


@dataclass(frozen=True)
class EngineNotice:
    """Something about the execution that the user should know, such as a cluster that others can reach."""

    event: ClassVar[str] = "engine_notice"
    text: str


@dataclass(frozen=True)
class WorkerLost:
    """A worker ended while it ran a job; the job is run again on another one. It does not change the result.

    job: which client, task and round, or what was evaluated · attempt: how often the job has failed
    """

    event: ClassVar[str] = "worker_lost"
    job: str
    reason: str
    attempt: int


@dataclass(frozen=True)
class RoundFinished:
    """One round. `accuracy` maps domain names to accuracies where the round was evaluated; with another objective than
    classification, to its main metric.

    delta_norm, max_client_delta, drift (the distance to the anchor) and theta_norm count weights only, not BatchNorm
    statistics. bytes_once: the part of bytes_down that is payloads, which are not sent again. plain_sgd: every step was
    the rate times a gradient and clients weigh the same, so that caps with a gradient bound apply. max_grad: the
    largest gradient of the local steps, where constants are estimated. metrics: further numbers of the method.
    max_client_delta is None with differential privacy, where no number of a single update is recorded.
    step_norm: norm of what the server multiplied by server_lr, where a server optimizer made it of the mean delta.
    anchored: where each weight has its own strength; lam is then the smallest of all.
    begun: where tasks are detected, how many have begun; `task` and `round` then say where the stream is.
    """

    event: ClassVar[str] = "round"
    task: int
    round: int
    clients: list[int]
    num_accepted: int
    held: bool
    clients_per_round: int
    server_lr: float
    client_lr: float
    mean_steps: float
    samples: int
    loss: float | None
    delta_norm: float
    max_client_delta: float | None
    drift: float | None
    lam: float | None
    mu: float | None
    bytes_up: int
    bytes_down: int
    bytes_once: int
    client_memory_bytes: int
    client_memory_paper_bytes: int
    accuracy: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    theta_norm: float | None = None
    max_grad: float | None = None
    step_norm: float | None = None
    anchored: AnchoredPart | None = None
    plain_sgd: bool = True
    begun: int | None = None
    seconds: float = 0.0
    seconds_server: float = 0.0


@dataclass(frozen=True)
class QueryFinished:
    """Clients answered a query at the start or the end of a task; bytes are the sum over these clients."""

    event: ClassVar[str] = "query"
    task: int
    query: str
    queried: int
    replied: int
    bytes_up: int
    bytes_down: int
    seconds: float = 0.0


@dataclass(frozen=True)
class TaskBoundary:
    """The method's work when a task begins or ends, its queries included."""

    event: ClassVar[str] = "task_boundary"
    task: int
    hook: Literal["begin_task", "end_task"]
    seconds: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """A constant of the problem, what kind of number it is, the number of observations, and a note.

    kind: "exact"; "upper" or "lower", a bound on the constant from that side; "plugin", a value from either side
    """

    value: float
    kind: Literal["exact", "upper", "lower", "plugin"]
    n: int
    note: str = ""


@dataclass(frozen=True)
class ConstantsEstimated:
    """Constants by name, at the model that was sent in this round; at the end of the task where `round` is None."""

    event: ClassVar[str] = "estimates"
    task: int
    round: int | None
    estimates: dict[str, Estimate]
    seconds: float = 0.0


@dataclass(frozen=True)
class CertificateIssued:
    """The distance of a task's model to its anchor and the upper bounds on it, computed from the events of its rounds.

    Weights only: BatchNorm statistics are not counted. Without a server-side anchor, `rounds` is empty.
    """

    event: ClassVar[str] = "certificate"
    task: int
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]


@dataclass(frozen=True)
class TaskFinished:
    """A row of the accuracy matrix: the model after this task on every domain, seen or not; None where no site of a
    real federation can test it, or where the metric is not defined. With another objective than classification, its
    main metric is in the place of the accuracy. metrics: name → value on every domain, beside the main metric."""

    event: ClassVar[str] = "task_finished"
    task: int
    name: str
    accuracy: list[float | None]
    accuracy_masked: list[float | None] | None = None
    seconds_evaluation: float = 0.0
    metrics: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunFinished:
    event: ClassVar[str] = "run_finished"
    model_sha256: str


_ENCODER = json.JSONEncoder(allow_nan=False, default=dataclasses.asdict)

EXECUTION_EVENTS = frozenset({EngineStarted.event, EngineNotice.event, WorkerLost.event})
"""Events about how a run is executed. All others are the same in every execution of the same run, except for times."""


class EventLog:
    """Append-only JSON lines. A checkpoint has its length and hash; `cut` truncates the file to such a length."""

    def __init__(self, path: Path, *, cut: int = 0) -> None:
        self.path = path
        self._sha = prefix_sha256(path, cut)
        self._file = path.open("ab")
        self._file.truncate(cut)

    def write(self, event: Event) -> None:
        fields = {"event": event.event, **vars(event)}
        line = _ENCODER.encode(fields).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        self._sha.update(line)

    def sync(self) -> tuple[int, str]:
        """Make everything written so far durable; returns its length and hash."""
        os.fsync(self._file.fileno())
        return self._file.tell(), self._sha.hexdigest()

    def close(self) -> None:
        self._file.close()


def prefix_sha256(path: Path, length: int) -> hashlib._Hash:
    """Hash of the first bytes of a file, to be continued."""
    return hashlib.sha256(path.read_bytes()[:length] if length else b"")


def read_events(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a last line that was cut off by a kill is ignored."""
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]


def of_kind(events: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == kind]
