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
    BorderFinished,
    Event,
    EventLog,
    RoundFinished,
    RunFinished,
    StageFinished,
    TaskFinished,
    TaskStarted,
    UpdateRefused,
    read_events,
)
from fedspecial.core.messages import Broadcast, Numbers, ServerState
from fedspecial.core.vector import FlatModel
from fedspecial.data.federation import Federation
from fedspecial.engine import estimate
from fedspecial.engine.aggregate import RunningMean, norm
from fedspecial.engine.checkpoint import Checkpointer, Position
from fedspecial.engine.head import grow
from fedspecial.engine.inprocess import Engine
from fedspecial.engine.stats import RoundStats
from fedspecial.methods.base import Exchange, Method, ProblemSpec, Query, QueryResult, RoundInfo, ServerContext


@dataclass
class Run:
    """A run under way. `vector` is the whole global model; `server.theta` is the part of it that is averaged and
    anchored (a view), the rest are BatchNorm statistics under another policy. `model` and `networks` are the engine's
    too, so each use begins with loading a vector.

    certify: (events so far, task) → the certificate of a task that has ended
    enough:  (task, rounds played) → whether the task is to end before all its rounds are played
    quorum:  with fewer usable updates than this, a round leaves the model as it is; asked when the replies are in
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
    enough: Callable[[int, int], bool] = lambda task, rounds: False
    quorum: Callable[[], int] = lambda: 1

    def emit(self, event: Event) -> None:
        self.log.write(event)
        self.tell(event)

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    @property
    def rest(self) -> Tensor:
        return self.vector[len(self.server.theta) :]

    def context(self, task: int) -> ServerContext:
        old, new = (self.federation.num_classes(t) if t else 0 for t in (task - 1, task))
        return ServerContext(task, self.model, self.networks, self.problem, self.config.seed, new, old)

    def checkpoint(self, position: Position) -> None:
        clients, payloads = self.engine.kept()
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
    """All tasks that are left, from `run.position` on."""
    first = run.position
    for task in range(first.task, run.federation.num_tasks + 1):  # line 2
        start = first.round if task == first.task else 0
        if start == 0:
            _begin_task(run, task)
        for round in range(start, run.config.rounds):  # line 4
            if run.enough(task, round):
                break
            run_round(run, task, round)
            if run.checkpointer.due():
                run.checkpoint(Position(task, round + 1))
        _finish_task(run, task)
        run.checkpoint(Position(task + 1, 0))
    run.emit(RunFinished(run.model.layout.digest(run.vector)))


def _begin_task(run: Run, task: int) -> None:
    grow(run, task)
    run.method.begin_task(run.server, task)  # line 3: θ_i^0 = θ_{i−1}
    domain = run.federation.domain(task)
    run.emit(TaskStarted(task, domain.name, run.federation.num_classes(task), len(domain.train)))
    _cross_border(run, task, "arrival")


def _cross_border(run: Run, task: int, border: Literal["arrival", "departure"]) -> None:
    """What the method does when a task begins or ends; the clients' answers are sent into its generator."""
    if getattr(type(run.method), border) is getattr(Method, border):
        return
    began = time.perf_counter()
    # With the statistics that a method's vector may lack, and not those that the last client left there.
    run.model.load(run.vector)
    talk: Exchange | None = getattr(run.method, border)(run.server, run.context(task))
    if talk is not None:
        with contextlib.suppress(StopIteration):
            ask = next(talk)
            while True:
                ask = talk.send(_answers(run, task, ask))
    run.emit(BorderFinished(task, border, time.perf_counter() - began))


def _answers(run: Run, task: int, ask: Query) -> dict[int, QueryResult]:
    began = time.perf_counter()
    answers: dict[int, QueryResult] = {}
    bytes_up = bytes_down = asked = 0
    complete = replace(ask, message=lambda client: _with_statistics(run, ask.message(client)))
    for heard in run.engine.ask(complete):
        asked, bytes_up, bytes_down = asked + 1, bytes_up + heard.bytes_up, bytes_down + heard.bytes_down
        if heard.answer is None:
            run.emit(UpdateRefused(task, None, heard.client, heard.problem or "it did not answer"))
        else:
            answers[heard.client] = heard.answer
    seconds = time.perf_counter() - began
    run.emit(StageFinished(task, ask.stage, asked, len(answers), bytes_up, bytes_down, seconds))
    return answers


def run_round(run: Run, task: int, round: int) -> None:
    """One round: choose, train, average, step, record."""
    config = run.config
    client_lr, server_lr = config.client_lr_of(task, round), config.server_lr_of(task)
    clients = run.method.sample_clients(  # line 5
        run.server, config.seed, task, round, run.federation.clients, config.clients_per_round
    )
    if config.estimate:
        run.emit(estimate.at_broadcast(run, task, round, clients))
    began = time.perf_counter()

    stats, mean = RoundStats(run.model.layout.num_weights), RunningMean()
    for reply in run.engine.train(clients, lambda m: _broadcast(run, m, task, round), client_lr):  # lines 6 to 15
        problem = stats.count(reply)
        if problem is not None:
            run.emit(UpdateRefused(task, round, reply.client, problem))
        elif reply.update is not None:
            run.method.receive(run.server, reply.update)
            mean.add(reply.update.deltas, reply.update.samples if config.weighting == "samples" else 1)

    stats.quorum = run.quorum()
    server_began = time.perf_counter()
    facts: Numbers = {}
    if not stats.held:
        average = mean.result(config.clients if config.weighting == "registered" else None)  # line 16
        stats.delta_norm = norm(next(iter(average.values()))[: stats.num_weights])
        adaptive = config.optimizer != "sgd"
        info = RoundInfo(task, round, server_lr, client_lr, stats.mean_steps, adaptive, run.context(task))
        facts = run.method.server_step(run.server, average, info)  # lines 17 and 18
        if "buffers" in average:
            run.rest.add_(average["buffers"])
    ended = time.perf_counter()
    run.emit(
        RoundFinished(
            task=task,
            round=round,
            clients=clients,
            clients_per_round=config.clients_per_round,
            server_lr=server_lr,
            client_lr=client_lr,
            **_distances(run),
            lam=facts.pop("lam", None),
            mu=facts.pop("mu", None),
            accuracy=_curve_points(run, task, round),
            facts=facts,
            plain_sgd=_plain_sgd(config),
            seconds=ended - began,
            seconds_server=ended - server_began,
            **stats.fields(),
        )
    )


def _broadcast(run: Run, client: int, task: int, round: int) -> Broadcast:
    return _with_statistics(run, run.method.broadcast(run.server, client, task, round))


def _with_statistics(run: Run, message: Broadcast) -> Broadcast:
    """Beside what the method sends, the BatchNorm statistics where they are averaged on their own."""
    if run.config.batch_norm == "mean-only" and len(run.rest):
        message.vectors["buffers"] = run.rest
    return message


def _distances(run: Run) -> dict[str, Any]:
    """How far the weights are from the anchor, and from zero (which says what float32 can resolve)."""
    anchor = run.server.tensors.get("anchor")
    if anchor is None:
        return {"drift": None}
    theta, anchor = (vector[: run.model.layout.num_weights] for vector in (run.server.theta, anchor))
    return {"drift": norm(theta - anchor), "theta_norm": norm(theta)}


def _plain_sgd(config: Config) -> bool:
    return config.optimizer == "sgd" and not config.momentum and config.weighting != "samples"


def measure(
    run: Run, after: int, tasks: Sequence[int], *, cap: int | None = None, masked: bool = False
) -> list[float | None]:
    """Accuracies on the domains of `tasks`, as predicted in or after another task; None where nobody can tell."""

    def message(client: int) -> Broadcast:
        return _with_statistics(run, run.method.eval_broadcast(run.server, client, after))

    return run.engine.accuracies(message, tasks, cap=cap, masked=masked)


def _curve_points(run: Run, task: int, round: int) -> dict[str, float]:
    every = run.config.eval_every
    if not every or ((round + 1) % every and round + 1 != run.config.rounds):
        return {}
    seen = range(1, task + 1)
    found = measure(run, task, seen, cap=run.config.eval_cap)
    return {run.federation.domain(i).name: value for i, value in zip(seen, found, strict=True) if value is not None}


def _finish_task(run: Run, task: int) -> None:
    _cross_border(run, task, "departure")  # line 21: θ_i = θ_i^T
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
