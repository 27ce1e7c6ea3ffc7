"""One round of Algorithm 1: lines 5 to 18. Line numbers in comments are the paper's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol

from fedspecial.config import Config
from fedspecial.core.events import RoundFinished, UpdateRefused
from fedspecial.core.messages import BUFFERS, Broadcast, Tensors, Update
from fedspecial.engine import estimate
from fedspecial.engine.aggregation import robust, screening, server_optimizer
from fedspecial.engine.aggregation.held_updates import HeldUpdates
from fedspecial.engine.aggregation.mean import RunningMean, distance, first_norm, norm
from fedspecial.engine.aggregation.robust import RobustMean
from fedspecial.engine.base import Reply
from fedspecial.engine.checkpoint import Position
from fedspecial.engine.detection import ALARM_SHARE, FIRST_LOSS, alarm_share, observe
from fedspecial.engine.evaluate import main_values
from fedspecial.engine.method_checks import check_clients, check_report, check_server_state
from fedspecial.engine.run import Run, measure, with_statistics
from fedspecial.engine.stats import RoundStats
from fedspecial.methods.base import Method, RoundInfo, StepReport


class Weights(Protocol):
    """The weights of updates in the mean where they differ from those of a synchronous round."""

    def factor(self, update: Update, weight: float) -> float:
        """The factor of an update that is used, from its weight in a synchronous round."""
        ...

    def divisor(self) -> float:
        """What the sum is divided by, after the last update."""
        ...


@dataclass(frozen=True)
class StepPlan:
    """How a server step is made.

    scale: the share of a round that it stands for; γ_G is multiplied by it · evaluate: whether the model is evaluated
    plain: whether the mean weighs no client more than others
    """

    client_lr: float
    evaluate: bool
    scale: float = 1.0
    weights: Weights | None = None
    plain: bool = True


def run_round(run: Run, task: int, round: int) -> None:
    """One round: sample clients, train, average, server step, evaluate, record."""
    config, run.place = run.config, Position(task, round)
    task, round = run.learned_task.task, run.learned_task.round
    clients = _timed(run, task, round, _sample_clients(run, task, round))  # line 5
    if config.estimate and clients:
        run.emit(estimate.at_broadcast(run, task, round, clients))

    def message(client: int) -> Broadcast:
        return with_statistics(run, run.method.broadcast(run.server, client, task, round))

    plan = StepPlan(client_lr_of(run, task, round), _evaluated(config, run.place.round))
    replies = run.engine.train(task, round, clients, message, plan.client_lr)
    apply_updates(run, task, round, clients, replies, plan)


def apply_updates(
    run: Run, task: int, round: int, clients: list[int], replies: Iterable[Reply], plan: StepPlan
) -> None:
    """Lines 6 to 18: have the clients train, average, server step, evaluate, record."""
    config = run.config
    if config.asynchronous:
        run.place = Position(task, round)
    began = time.perf_counter()
    stats, mean = _collect(run, task, round, replies, plan)  # lines 6 to 15
    stats.quorum = max(run.quorum(), config.required_updates, config.min_updates)
    server_began = time.perf_counter()
    report = StepReport()
    if not stats.held:
        average = _average(run, task, round, mean, plan)  # line 16
        report = server_step(run, task, round, average, stats, plan)  # lines 17 and 18
    ended = time.perf_counter()
    accuracy = _accuracy(run) if plan.evaluate else {}
    metrics = {**report.metrics, **(watch(run, stats.first_losses) if run.detects else {})}
    run.emit(
        RoundFinished(
            task=run.place.task,
            round=run.place.round,
            clients=clients,
            clients_per_round=config.clients_per_round,
            server_lr=config.server_lr_of(task) * plan.scale,
            client_lr=plan.client_lr,
            **distances(run),
            lam=report.lam,
            mu=report.mu,
            anchored=report.anchored,
            accuracy=accuracy,
            metrics=metrics,
            begun=task if run.detects else None,
            plain_sgd=_plain_sgd(config) and plan.plain and run.private is None,
            seconds=ended - began,
            seconds_server=ended - server_began,
            **stats.fields(),
        )
    )


def _timed(run: Run, task: int, round: int, asked: list[int]) -> list[int]:
    """The clients whose updates are taken; with the simulated clock, the others of those asked are reported as lost."""
    if run.work is None:
        return asked
    timed = run.work.time_round(task, round, asked)
    for event in timed.events(run.place.task, run.place.round):
        run.emit(event)
    return timed.used


def _sample_clients(run: Run, task: int, round: int) -> list[int]:
    present, count = run.federation.present, run.config.over_select or run.config.clients_per_round
    if run.private:
        run.private.check_budget(count, len(present))
        if run.private.sample:
            return [present[number] for number in run.private.sample(len(present), count)]
    sample, where = run.method.sample_clients, (run.config.seed, task, round)
    if type(run.method).sample_clients is Method.sample_clients:  # uniform, so that it matters only how many there are
        return [present[number] for number in sample(run.server, *where, len(present), count)]
    chosen, clients = list[int](), run.federation.clients
    for drawn in range(count, clients + 1):  # one more for each chosen client that left the federation
        found = check_clients(run.method, sample(run.server, *where, clients, drawn), clients)
        chosen = [client for client in found if client not in run.federation.absent]
        if len(chosen) >= count:
            break
    return chosen


def _collect(
    run: Run, task: int, round: int, replies: Iterable[Reply], plan: StepPlan
) -> tuple[RoundStats, RunningMean | RobustMean]:
    """Sum up or keep the updates that can be used."""
    config, stats = run.config, RoundStats(run.model.layout.num_weights)
    mean = RunningMean() if config.aggregation == "mean" else RobustMean(config)

    def accept(update: Update) -> None:
        if config.clip_norm is not None:
            update = replace(update, deltas=robust.clip(update.deltas, config.clip_norm))
        stats.accept(update)
        run.method.receive(run.server, update)
        weight: float = update.samples if config.weighting == "samples" else 1
        if plan.weights is not None:
            weight = plan.weights.factor(update, weight)
        mean.add(update.deltas, run.private.factor(update.deltas) if run.private else weight)

    statistics = screening.statistics_of(run.model, run.networks)
    holds = config.norm_limit or config.aggregation != "mean"
    held = HeldUpdates(run.checkpointer.folder, statistics) if holds else None
    for reply in replies:
        problem = stats.count(reply)
        if problem is None and reply.update is not None:
            problem = screening.impossible(reply.update.deltas, reply.sent, statistics)
            if problem is None and config.norm_limit:
                problem = screening.beyond_all(reply.update.deltas, reply.sent)
        if problem is not None:
            run.emit(UpdateRefused(run.place.task, run.place.round, reply.client, problem))
        elif reply.update is not None and held is not None:
            held.add(reply, reply.update)
        elif reply.update is not None:
            accept(reply.update)
    if held is not None:
        _accept_held(run, task, round, held, accept)
    if run.private or config.aggregation in ("median", "trimmed-mean"):
        stats.largest = None  # the norm of the result may exceed that of every update, so it is no bound
    return stats, mean


def _accept_held(run: Run, task: int, round: int, held: HeldUpdates, accept: Callable[[Update], None]) -> None:
    """Accept the updates of a round that are not far larger than others."""
    history, limit = run.server.update_norms, run.config.norm_limit
    refused = screening.too_large(held.sizes, history, task, limit) if limit else {}
    if limit:
        accepted = {client: sizes for client, sizes in held.sizes.items() if client not in refused}
        screening.remember(history, task, accepted)
    for update in held.take():
        if update.client in refused:
            run.emit(UpdateRefused(run.place.task, run.place.round, update.client, refused[update.client]))
            continue
        accept(update)


def _average(run: Run, task: int, round: int, mean: RunningMean | RobustMean, plan: StepPlan) -> Tensors:
    """The mean of the updates; with differential privacy, their noisy sum over the planned number of clients."""
    divisor: float | None = len(run.federation.present) if run.config.weighting == "registered" else None
    if plan.weights is not None:
        divisor = plan.weights.divisor()
    if run.private and isinstance(mean, RunningMean):
        planned = run.config.clients_per_round
        run.emit(run.private.charge(task, round, planned, len(run.federation.present)))
        run.private.add_noise(mean, task, round)
        divisor = divisor or planned
    return mean.result(divisor)


def server_step(run: Run, task: int, round: int, average: Tensors, stats: RoundStats, plan: StepPlan) -> StepReport:
    """Let the method compute the next model from the mean of the updates; its norms are added to `stats`."""
    config = run.config
    stats.delta_norm = first_norm(average, stats.num_weights)
    if config.server_optimizer != "sgd":
        server_optimizer.replace_deltas(config, run.server, average, stats.num_weights)
        stats.step_norm = first_norm(average, stats.num_weights)
    info = RoundInfo(
        task,
        round,
        server_lr=config.server_lr_of(task) * plan.scale,
        client_lr=plan.client_lr,
        mean_steps=stats.mean_steps,
        adaptive=config.adaptive,
        context=run.context(task),
        scale=plan.scale,
        batch_size=config.batch_size,
    )
    report = check_report(run.method, run.method.server_step(run.server, average, info))
    check_server_state(run.method, "server_step", run.server, run.vector)
    if BUFFERS in average:
        run.statistics.add_(average[BUFFERS])
    return report


def distances(run: Run) -> dict[str, Any]:
    """The distance of the weights from the anchor, and their norm, which says what float32 can resolve."""
    if run.server.anchor is None:
        return {"drift": None}
    theta, anchor = (vector[: run.model.layout.num_weights] for vector in (run.server.theta, run.server.anchor))
    return {"drift": distance(theta, anchor), "theta_norm": norm(theta)}


def _plain_sgd(config: Config) -> bool:
    """Whether steps and means are those of the bounds with B, which is the largest gradient of the loss alone."""
    plain_mean = config.aggregation == "mean" and config.clip_norm is None and config.weighting != "samples"
    return plain_mean and not (config.adaptive or config.momentum or config.weight_decay)


def client_lr_of(run: Run, task: int, round: int) -> float:
    """γ_L of a round, as the method counts them; without a reset it decays over the whole run."""
    if run.detects and not run.config.client_lr_reset:
        return run.config.client_lr_of(1, run.time)
    return run.config.client_lr_of(task, round)


def watch(run: Run, losses: Mapping[int, float]) -> dict[str, float]:
    """Give the detectors the first losses of a round; what they say is recorded with the round."""
    observe(run.server, run.time, losses)
    mean = {FIRST_LOSS: fmean(losses.values())} if losses else {}
    return {**mean, ALARM_SHARE: alarm_share(run.server, run.config, run.time)}


def _evaluated(config: Config, round: int) -> bool:
    every = config.eval_every
    return bool(every) and ((round + 1) % every == 0 or round + 1 == config.rounds)


def _accuracy(run: Run) -> dict[str, float]:
    """The main metric on the domains seen so far, by name."""
    federation = run.federation
    schedule = None if run.config.asynchronous else federation.schedule  # its steps are no rounds of a stream
    visits = run.place.task if schedule is None else schedule.visits_begun(run.time)
    seen = range(1, min(visits, federation.num_domains) + 1)
    values = main_values(run.objective, measure(run, run.learned_task.task, seen, cap=run.config.eval_cap))
    return {federation.domain(i).name: value for i, value in zip(seen, values, strict=True) if value is not None}
