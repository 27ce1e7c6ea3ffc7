"""Algorithm 1: task after task, round after round. Line numbers in comments are the paper's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from fedspecial.config import Config
from fedspecial.core.events import (
    Event,
    EventLog,
    QueryFinished,
    RoundFinished,
    RunFinished,
    TaskBoundary,
    TaskFinished,
    TaskStarted,
    UpdateRefused,
    read_events,
)
from fedspecial.core.messages import BUFFERS, Broadcast, ServerState
from fedspecial.core.vector import FlatModel
from fedspecial.data.federation import Federation
from fedspecial.engine import estimate
from fedspecial.engine.aggregate import RunningMean, norm
from fedspecial.engine.base import Engine
from fedspecial.engine.checkpoint import Checkpointer, Position
from fedspecial.engine.head import grow
from fedspecial.engine.stats import RoundStats
from fedspecial.methods.base import (
    Exchange,
    Method,
    ProblemSpec,
    Query,
    QueryResult,
    RoundInfo,
    ServerContext,
    StepReport,
)


@dataclass
class Run:
    """The parts of a run and its current state.

    vector:  the complete global model; `server.theta` is a view of the part that the method averages, and the rest are
             BatchNorm statistics that are treated in another way
    model, networks: shared with the engine, so load a vector before each use
    certify: (events so far, task) → the certificate of a task that has ended
    ends_early: (task, finished rounds) → whether the task ends before all its rounds
    quorum:  with fewer usable updates than this, a round does not change the model; called after the last reply
    """

    config: Config
    method: Method
    federation: Federation
    model: FlatModel
    networks: dict[str, FlatModel]
    problem: ProblemSpec
    engine: Engine
    log: EventLog
    checkpointer: Checkpointer
    vector: Tensor
    server: ServerState
    position: Position = field(default_factory=Position)
    listeners: tuple[Callable[[Event], None], ...] = ()
    certify: Callable[[list[dict[str, Any]], int], Event] | None = None
    ends_early: Callable[[int, int], bool] = lambda task, rounds: False
    quorum: Callable[[], int] = lambda: 1

    def emit(self, event: Event) -> None:
        for earlier in self.engine.events():
            self.log.write(earlier)
            self.tell(earlier)
        self.log.write(event)
        self.tell(event)

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    @property
    def statistics(self) -> Tensor:
        """The BatchNorm statistics that are not a part of θ."""
        return self.vector[len(self.server.theta) :]

    def context(self, task: int) -> ServerContext:
        old, new = (self.federation.num_classes(t) if t else 0 for t in (task - 1, task))
        return ServerContext(task, self.model, self.networks, self.problem, self.config.seed, new, old)

    def checkpoint(self, position: Position) -> None:
        clients, payloads = self.engine.checkpoint_state()
        self.checkpointer.save(
            position,
            events=self.log.sync(),
            layout=self.model.layout.fingerprint,
            vector=self.vector,
            server=self.server,
            clients=clients,
            payloads=payloads,
        )


def learn(run: Run) -> None:
    """Run all rounds and tasks that are left."""
    first = run.position
    for task in range(first.task, run.federation.num_tasks + 1):  # line 2
        start = first.round if task == first.task else 0
        if start == 0:
            _begin_task(run, task)
        for round in range(start, run.config.rounds):  # line 4
            if run.ends_early(task, round):
                break
            run_round(run, task, round)
            if run.checkpointer.due():
                run.checkpoint(Position(task, round + 1))
        _end_task(run, task)
        run.checkpoint(Position(task + 1, 0))
    run.emit(RunFinished(run.model.layout.digest(run.vector)))


def _begin_task(run: Run, task: int) -> None:
    grow(run, task)
    domain = run.federation.domain(task)
    run.emit(TaskStarted(task, domain.name, run.federation.num_classes(task), len(domain.train)))
    _call_hook(run, task, "begin_task")  # line 3: θ_i^0 = θ_{i−1}


def _call_hook(run: Run, task: int, hook: Literal["begin_task", "end_task"]) -> None:
    """Let the method do its work at the start or the end of a task, and answer its queries."""
    if getattr(type(run.method), hook) is getattr(Method, hook):
        return
    began = time.perf_counter()
    # A method's vector may lack BatchNorm statistics, and the model still has those of the last client.
    run.model.load(run.vector)
    exchange: Exchange | None = getattr(run.method, hook)(run.server, run.context(task))
    if exchange is not None:
        with contextlib.suppress(StopIteration):
            query = next(exchange)
            while True:
                query = exchange.send(_query_clients(run, task, query))
    run.emit(TaskBoundary(task, hook, time.perf_counter() - began))


def _query_clients(run: Run, task: int, query: Query) -> dict[int, QueryResult]:
    """The results of a query by client; a client whose result cannot be used is missing."""
    began = time.perf_counter()
    results: dict[int, QueryResult] = {}
    bytes_up = bytes_down = queried = 0
    complete = replace(query, message=lambda client: _with_statistics(run, query.message(client)))
    for reply in run.engine.query(complete):
        queried, bytes_up, bytes_down = queried + 1, bytes_up + reply.bytes_up, bytes_down + reply.bytes_down
        if reply.result is None:
            run.emit(UpdateRefused(task, None, reply.client, reply.problem or "it did not reply"))
        else:
            results[reply.client] = reply.result
    seconds = time.perf_counter() - began
    run.emit(QueryFinished(task, query.name, queried, len(results), bytes_up, bytes_down, seconds))
    return results


def run_round(run: Run, task: int, round: int) -> None:
    """One round: sample clients, train, average, server step, evaluate, record."""
    config = run.config
    client_lr, server_lr = config.client_lr_of(task, round), config.server_lr_of(task)
    clients = run.method.sample_clients(  # line 5
        run.server, config.seed, task, round, run.federation.clients, config.clients_per_round
    )
    if config.estimate:
        run.emit(estimate.at_broadcast(run, task, round, clients))
    began = time.perf_counter()

    stats, mean = RoundStats(run.model.layout.num_weights), RunningMean()

    def message(client: int) -> Broadcast:
        return _with_statistics(run, run.method.broadcast(run.server, client, task, round))

    for reply in run.engine.train(task, round, clients, message, client_lr):  # lines 6 to 15
        problem = stats.count(reply)
        if problem is not None:
            run.emit(UpdateRefused(task, round, reply.client, problem))
        elif reply.update is not None:
            run.method.receive(run.server, reply.update)
            mean.add(reply.update.deltas, reply.update.samples if config.weighting == "samples" else 1)

    stats.quorum = run.quorum()
    server_began = time.perf_counter()
    report = StepReport()
    if not stats.held:
        average = mean.result(config.clients if config.weighting == "registered" else None)  # line 16
        stats.delta_norm = norm(next(iter(average.values()))[: stats.num_weights])
        adaptive = config.optimizer != "sgd"
        info = RoundInfo(task, round, server_lr, client_lr, stats.mean_steps, adaptive, run.context(task))
        report = run.method.server_step(run.server, average, info)  # lines 17 and 18
        if BUFFERS in average:
            run.statistics.add_(average[BUFFERS])
    ended = time.perf_counter()
    accuracy = _accuracy_after_round(run, task, round)
    run.emit(
        RoundFinished(
            task=task,
            round=round,
            clients=clients,
            clients_per_round=config.clients_per_round,
            server_lr=server_lr,
            client_lr=client_lr,
            **_distances(run),
            lam=report.lam,
            mu=report.mu,
            accuracy=accuracy,
            metrics=dict(report.metrics),
            plain_sgd=_plain_sgd(config),
            seconds=ended - began,
            seconds_server=ended - server_began,
            **stats.fields(),
        )
    )


def _with_statistics(run: Run, message: Broadcast) -> Broadcast:
    """Add the BatchNorm statistics to a message where they are averaged apart from the weights."""
    if run.config.batch_norm == "mean-only" and len(run.statistics):
        message.vectors[BUFFERS] = run.statistics
    return message


def _distances(run: Run) -> dict[str, Any]:
    """The distance of the weights from the anchor, and their norm, which says what float32 can resolve."""
    if run.server.anchor is None:
        return {"drift": None}
    theta, anchor = (vector[: run.model.layout.num_weights] for vector in (run.server.theta, run.server.anchor))
    return {"drift": norm(theta - anchor), "theta_norm": norm(theta)}


def _plain_sgd(config: Config) -> bool:
    return config.optimizer == "sgd" and not config.momentum and config.weighting != "samples"


def measure(
    run: Run, after: int, tasks: Sequence[int], *, cap: int | None = None, masked: bool = False
) -> list[float | None]:
    """Accuracies on the domains of `tasks` during or after task `after`; None where no client has test samples."""

    def message(client: int) -> Broadcast:
        return _with_statistics(run, run.method.eval_broadcast(run.server, client, after))

    return run.engine.accuracies(message, tasks, cap=cap, masked=masked)


def _accuracy_after_round(run: Run, task: int, round: int) -> dict[str, float]:
    """Accuracy on the domains seen so far, by name; empty in rounds that are not evaluated."""
    every = run.config.eval_every
    if not every or ((round + 1) % every and round + 1 != run.config.rounds):
        return {}
    seen = range(1, task + 1)
    values = measure(run, task, seen, cap=run.config.eval_cap)
    return {run.federation.domain(i).name: value for i, value in zip(seen, values, strict=True) if value is not None}


def _end_task(run: Run, task: int) -> None:
    _call_hook(run, task, "end_task")  # line 20: θ_i = θ_i^T
    if run.config.estimate:
        run.emit(estimate.at_task_end(run, task))
    if run.certify is not None:
        run.emit(run.certify(read_events(run.log.path), task))
    began = time.perf_counter()
    tasks = range(1, run.federation.num_tasks + 1)
    row = measure(run, task, tasks)
    masked = None
    if run.federation.benchmark.incremental == "class":
        masked = measure(run, task, tasks, masked=True)
    name = run.federation.domain(task).name
    run.emit(TaskFinished(task, name, row, masked, time.perf_counter() - began))
