"""Algorithm 1: task after task, round after round. Line numbers in comments are the paper's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedspecial.config import Config
from fedspecial.core.events import (
    Event,
    EventLog,
    RoundFinished,
    RunFinished,
    TaskFinished,
    TaskStarted,
    UpdateRefused,
    read_events,
)
from fedspecial.core.messages import Broadcast, Numbers, ServerState
from fedspecial.core.streams import choose
from fedspecial.core.vector import FlatModel
from fedspecial.engine import estimate
from fedspecial.engine.aggregate import RunningMean, norm
from fedspecial.engine.checkpoint import Keeper, Position
from fedspecial.engine.evaluate import fixed_subset, mean_accuracy
from fedspecial.engine.federation import Federation
from fedspecial.engine.grow import grow
from fedspecial.engine.inprocess import InProcess
from fedspecial.engine.tally import Tally
from fedspecial.methods.base import Method, RoundInfo


@dataclass
class Run:
    """A run under way. `vector` is the whole global model; `server.theta` is the part of it that is averaged and
    anchored (a view), the rest are BatchNorm statistics under another policy.

    certify: (events so far, task) → the certificate of a task that has ended
    """

    config: Config
    method: Method
    federation: Federation
    model: FlatModel
    engine: InProcess
    log: EventLog
    keeper: Keeper
    vector: Tensor
    server: ServerState
    position: Position = field(default_factory=Position)
    listeners: tuple[Callable[[Event], None], ...] = ()
    certify: Callable[[list[dict[str, Any]], int], Event] | None = None

    def emit(self, event: Event) -> None:
        self.log.write(event)
        self.tell(event)

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    @property
    def rest(self) -> Tensor:
        return self.vector[len(self.server.theta) :]

    def checkpoint(self, position: Position) -> None:
        self.keeper.save(
            position,
            events=self.log.sync(),
            layout=self.model.layout.fingerprint,
            vector=self.vector,
            server=self.server,
            clients=self.engine.states.index,
            payloads=self.engine.payloads.to_json(),
        )


def learn(run: Run) -> None:
    """All tasks that are left, from `run.position` on."""
    first = run.position
    for task in range(first.task, run.federation.num_tasks + 1):  # line 2
        start = first.round if task == first.task else 0
        if start == 0:
            _begin_task(run, task)
        for round in range(start, run.config.rounds):  # line 4
            play_round(run, task, round)
            if run.keeper.due():
                run.checkpoint(Position(task, round + 1))
        _finish_task(run, task)
        run.checkpoint(Position(task + 1, 0))
    run.emit(RunFinished(run.model.layout.digest(run.vector)))


def _begin_task(run: Run, task: int) -> None:
    grow(run, task)
    run.method.begin_task(run.server, task)  # line 3: θ_i^0 = θ_{i−1}
    domain = run.federation.domain(task)
    run.emit(TaskStarted(task, domain.name, run.federation.num_classes(task), len(domain.train)))


def play_round(run: Run, task: int, round: int) -> None:
    """One round: choose, train, average, step, record."""
    config = run.config
    client_lr, server_lr = config.client_lr_of(task, round), config.server_lr_of(task)
    clients = choose(config.seed, task, round, run.federation.clients, config.clients_per_round)  # line 5
    if config.estimate:
        run.emit(estimate.at_broadcast(run, task, round, clients))
    began = time.perf_counter()

    tally, mean = Tally(run.model.layout.num_weights), RunningMean()
    for reply in run.engine.train(clients, lambda m: _broadcast(run, m, task, round), client_lr):  # lines 6 to 15
        problem = tally.count(reply)
        if problem is not None:
            run.emit(UpdateRefused(task, round, reply.client, problem))
        elif reply.update is not None:
            mean.add(reply.update.deltas, reply.update.samples if config.weighting == "samples" else 1)

    server_began = time.perf_counter()
    facts: Numbers = {}
    if tally.accepted:
        average = mean.result(config.clients if config.weighting == "registered" else None)  # line 16
        tally.delta_norm = norm(average["theta"][: tally.num_weights])
        info = RoundInfo(task, round, server_lr, client_lr, tally.mean_steps, config.optimizer != "sgd")
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
            **tally.fields(),
        )
    )


def _broadcast(run: Run, client: int, task: int, round: int) -> Broadcast:
    """What the method sends, and beside it the BatchNorm statistics where they are averaged on their own."""
    message = run.method.broadcast(run.server, client, task, round)
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


def measure(run: Run, task: int, *, cap: int | None = None, masked: bool = False) -> float:
    """Accuracy of the global model on one domain's test samples."""
    domain = run.federation.domain(task)
    local = run.engine.states if run.config.batch_norm == "local" else None
    return mean_accuracy(
        run.model,
        run.vector,
        fixed_subset(domain.test, cap, run.config.seed, domain.name),
        run.federation.benchmark,
        local,
        run.federation.clients,
        sorted(set(domain.train.y.tolist())) if masked else None,
    )


def _curve_points(run: Run, task: int, round: int) -> dict[str, float]:
    every = run.config.eval_every
    if not every or ((round + 1) % every and round + 1 != run.config.rounds):
        return {}
    return {
        run.federation.domain(seen).name: measure(run, seen, cap=run.config.eval_cap) for seen in range(1, task + 1)
    }


def _finish_task(run: Run, task: int) -> None:
    run.method.end_task(run.server, task)  # line 21: θ_i = θ_i^T
    if run.config.estimate:
        run.emit(estimate.at_task_end(run, task))
    if run.certify is not None:
        run.emit(run.certify(read_events(run.log.path), task))
    began = time.perf_counter()
    tasks = range(1, run.federation.num_tasks + 1)
    row = [measure(run, column) for column in tasks]
    masked = None
    if run.federation.benchmark.incremental == "class":
        masked = [measure(run, column, masked=True) for column in tasks]
    name = run.federation.domain(task).name
    run.emit(TaskFinished(task, name, row, masked, time.perf_counter() - began))
