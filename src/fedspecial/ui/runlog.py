"""What the pages show of an event log, collected event by event in bounded memory."""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

from fedspecial.report.scale import ACCURACY, Scale
from fedspecial.theory.bounds import drift_step
from fedspecial.ui.curves import CurveTable, ParticipationGrid
from fedspecial.ui.files import count_of, finite, number_of, text_of

Event = Mapping[str, Any]
MAX_TASKS = 60
MAX_WARNINGS = 200
MAX_PROBLEMS = 20
CURVES = ("loss", "delta_norm", "max_client_delta", "drift", "bound")


class RunLog:
    """The state of a run after the lines that were passed to `add_line`.

    position: the last finished round, counted over all tasks from 1
    """

    def __init__(self) -> None:
        self.started: dict[str, Any] = {}
        self.scale = ACCURACY
        self.anchored = False
        self.tasks: list[str] = []
        self.visits: list[str] = []
        self.rounds_per_task = 0
        self.position = 0
        self.task = 0
        self.task_ends: list[int] = []
        self.curves = CurveTable()
        self.grid: ParticipationGrid | None = None
        self.matrix: dict[int, list[float | None]] = {}
        self.last_accuracy: dict[str, float | None] = {}
        self.certificates: dict[int, dict[str, Any]] = {}
        self.warnings: Counter[str] = Counter()
        self.problems: list[str] = []
        self.num_problems = 0
        self.totals: defaultdict[str, float] = defaultdict(float)
        self.recent_seconds: deque[float] = deque(maxlen=20)
        self.model_sha256: str | None = None
        self._line = 0
        self._bound = 0.0
        self._before = 0
        self._refused: list[int] = []
        self._handlers: dict[str, Callable[[Event], None]] = {
            "run_started": self._on_start,
            "task_started": self._on_task_start,
            "round": self._on_round,
            "task_finished": self._on_task_end,
            "certificate": self._on_certificate,
            "update_refused": self._on_refusal,
            "query": self._on_query,
            "data_notice": lambda event: self._warn(text_of(event["text"])),
            "engine_notice": lambda event: self._warn(text_of(event["text"])),
            "worker_lost": self._on_worker_lost,
            "run_finished": self._on_finish,
            "run_extended": self._add_tasks,
        }

    @property
    def points(self) -> list[str]:
        """The domain that is learned before each row of the matrix."""
        return self.visits or self.tasks

    @property
    def total_rounds(self) -> int:
        return max(len(self.points) * self.rounds_per_task, self.position)

    def add_line(self, line: bytes) -> None:
        """One line of the log; a line that cannot be used is noted and left out."""
        self._line += 1
        try:
            event = json.loads(_without_rounds(line))
        except (ValueError, RecursionError):
            self._note_problem("it is not JSON")
            return
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            self._note_problem("it is not an event")
            return
        try:
            if handle := self._handlers.get(event["event"]):
                handle(event)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            what = f"the field {error} is missing" if isinstance(error, KeyError) else text_of(str(error))
            self._note_problem(f"the event {text_of(event['event'])!r} cannot be used: {what}")

    def _note_problem(self, text: str) -> None:
        self.num_problems += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(f"line {self._line}: {text}")

    def _warn(self, text: str) -> None:
        if text in self.warnings or len(self.warnings) < MAX_WARNINGS:
            self.warnings[text] += 1

    def _on_start(self, event: Event) -> None:
        self.tasks, visits = [], event.get("visits")
        self._add_tasks(event)
        self.visits = [text_of(name) for name in visits[:MAX_TASKS]] if isinstance(visits, list) else []
        self.rounds_per_task = count_of(event["rounds"])
        self.grid = ParticipationGrid(count_of(event["clients"]))
        names = ("method", "benchmark", "seed", "clients", "num_weights", "num_buffers")
        self.started = {name: event.get(name) for name in names}
        metric = event.get("metric")
        if isinstance(metric, dict):
            self.scale = Scale(text_of(metric["name"]), number_of(metric.get("low")), number_of(metric.get("high")))
        hyperparameters = event.get("hyperparameters")
        self.anchored = isinstance(hyperparameters, dict) and "lam" in hyperparameters

    def _add_tasks(self, event: Event) -> None:
        """The tasks with which the run began, or by which it was extended."""
        tasks = event["tasks"]
        if not isinstance(tasks, list):
            raise ValueError("tasks is not a list")
        if (total := len(self.tasks) + len(tasks)) > MAX_TASKS:
            self._warn(f"the run has {total} tasks; the page shows the first {MAX_TASKS}")
        self.tasks = [*self.tasks, *map(text_of, tasks)][:MAX_TASKS]

    def _on_task_start(self, event: Event) -> None:
        self._enter(count_of(event["task"]))
        self._bound = 0.0

    def _enter(self, task: int) -> None:
        if task != self.task:
            self.task, self._bound, self._before = task, 0.0, self.position

    def _at(self, event: Event) -> int:
        """The round of an event, counted over all tasks from 1. Asynchronous tasks may have more steps than planned."""
        planned = (max(1, count_of(event["task"], 10**6)) - 1) * self.rounds_per_task
        return max(planned, self._before) + count_of(event["round"]) + 1

    def _on_round(self, event: Event) -> None:
        self._enter(count_of(event["task"]))
        at = self._at(event)
        values = {name: finite(event.get(name)) for name in CURVES}
        accuracy = event.get("accuracy") or {}
        found = {name: finite(accuracy[name]) for name in self.tasks if name in accuracy}
        values["bound"] = self._drift_bound(event, values)
        self.anchored = self.anchored or values["drift"] is not None
        self.curves.add(at, values | {f"accuracy/{name}": value for name, value in found.items()})
        if found:
            self.last_accuracy = found
        clients = event.get("clients") or []
        if self.grid is not None:
            self.grid.add(at, clients, self._refused)
        self._refused = []
        self.position = max(self.position, at)
        self._count_round(event, len(clients))

    def _drift_bound(self, event: Event, values: Mapping[str, float | None]) -> float | None:
        """The bound that the certificate of the task will contain; it needs no assumption."""
        lam, rate = finite(event.get("lam")), finite(event.get("server_lr"))
        step = finite(event.get("step_norm"))
        delta = values["delta_norm"] if step is None else step
        if not event.get("held") and delta is not None and rate is not None:
            self._bound = drift_step(self._bound, rate, delta, lam or 0.0)
        return None if lam is None or values["drift"] is None else self._bound

    def _count_round(self, event: Event, clients: int) -> None:
        self.totals["rounds"] += 1
        self.totals["requests"] += clients
        self.totals["held"] += bool(event.get("held"))
        for name in ("bytes_up", "bytes_down", "bytes_once", "seconds"):
            self.totals[name] += finite(event.get(name)) or 0
        memory = finite(event.get("client_memory_bytes")) or 0
        self.totals["client_memory_bytes"] = max(self.totals["client_memory_bytes"], memory)
        if (seconds := finite(event.get("seconds"))) is not None:
            self.recent_seconds.append(seconds)
        if event.get("held"):
            self._warn("too few usable updates arrived, so the model did not change in this round")
        elif event.get("loss") is None:
            self._warn("no client reported a finite loss")

    def _on_task_end(self, event: Event) -> None:
        task = count_of(event["task"], MAX_TASKS)
        row = event["accuracy"]
        self.matrix[task] = [number_of(value) for value in row[: len(self.tasks)]]
        self.task_ends.append(self.position)

    def _on_certificate(self, event: Event) -> None:
        summary = event["summary"]
        names = ("drift", "recursion_bound", "max_ratio")
        task = count_of(event["task"], MAX_TASKS)
        about = {"anchored": summary.get("anchored") is True, "status": text_of(summary.get("status"))}
        self.certificates[task] = about | {name: number_of(summary.get(name)) for name in names}
        if summary.get("status") in ("bug in the run", "wrong constant"):
            self._warn(f"task {task}: a bound of the certificate is violated ({summary['status']})")

    def _on_refusal(self, event: Event) -> None:
        self.totals["refused"] += 1
        if event.get("round") is not None:
            self._refused.append(count_of(event["client"]))
        self._warn(f"an update was refused: {text_of(event['reason'])}")

    def _on_query(self, event: Event) -> None:
        for name in ("bytes_up", "bytes_down"):
            self.totals[f"query_{name}"] += number_of(event.get(name)) or 0

    def _on_worker_lost(self, event: Event) -> None:
        self._warn(f"a worker ended ({text_of(event['reason'])}); its job was run again")

    def _on_finish(self, event: Event) -> None:
        self.model_sha256 = text_of(event["model_sha256"])


def _without_rounds(line: bytes) -> bytes:
    """A certificate without its rounds: they may be longer than all other events, and repeat what these say."""
    if line.startswith(b'{"event": "certificate"'):
        end = line.find(b', "rounds": [')
        if end > 0:
            return line[:end] + b"}"
    return line
