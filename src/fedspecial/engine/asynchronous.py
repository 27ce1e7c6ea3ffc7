"""A task in asynchronous mode: a server step after `buffer` updates, each weighted by its staleness.

    Δ̄ = Σ_j s(τ_j)·Δ_j / |A|        θ ← (θ + γ_G·Δ̄ + λ·θ_{i−1}) / (1 + λ)        (SPECIAL; other methods step with Δ̄)

A: the updates of the step · τ_j: the versions that passed since client j downloaded its model · s: `staleness`

With `staleness_normalise=sum` the sum is divided by Σ_j s(τ_j) instead. With another buffer than `clients_per_round`,
γ_G and λ are scaled by buffer/clients_per_round (unless `scale_steps=false`), so that as many updates move the model as
far and pull it as strongly as in synchronous rounds.

The rules that make a run reproducible:

- All events of one moment are processed, ordered by kind and client, before any client starts.
- Clients start only after a server step, in ascending order, as many as are missing to `clients_per_round`. They are
  drawn from those that are not at work and have no update in the buffer, from the stream ("participation", task,
  version); those that cannot be reached are replaced by others from ("participation", task, version, attempt). Every
  step is a new version, so that no client works on a version twice.
- Updates of a step are added in ascending order of the clients.
- If nobody is at work any more, because clients dropped out, the server steps with the updates that it has; without
  any, the step leaves the model as it is.
- A task ends after rounds · clients_per_round updates that were used or refused for what they contain. Its last step
  may have fewer than `buffer`. Work that is in flight then belongs to the old task: it is dropped and reported.

With no latency and buffer = clients_per_round, this is the synchronous algorithm bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from torch import Tensor

from fedspecial.config import Config
from fedspecial.core.clock_events import UpdateOrigin
from fedspecial.core.messages import Broadcast, Update
from fedspecial.core.staleness import staleness_weight
from fedspecial.core.streams import draw_others
from fedspecial.engine.aggregation.mean import first_norm
from fedspecial.engine.checkpoint import Position
from fedspecial.engine.in_flight import Assignment, Finished, WorkInFlight
from fedspecial.engine.round import StepPlan, apply_updates
from fedspecial.engine.run import Run, with_statistics


def run_steps(run: Run, task: int, version: int) -> None:
    """All server steps of a task that are left."""
    work = run.work
    assert work is not None
    target, goal = run.config.rounds * run.config.clients_per_round, run.config.buffer_size
    if not work.at_work:  # also after a restart where real sites have to be asked again
        _start_clients(run, work, task, version)
    unused: list[Finished] = []
    while work.answered < target and not run.ends_early(task, work.answered // run.config.clients_per_round):
        before, moment = version, work.wait()
        for position, finished in enumerate(moment):
            _receive(run, work, task, version, finished)
            if len(work.buffer) == min(goal, target - work.answered):
                _step(run, work, task, version)
                version += 1
                if work.answered == target:
                    unused = moment[position + 1 :]
                    break
        if version == before and not work.at_work:
            _step(run, work, task, version)
            version += 1
        if version > before and work.answered < target:
            _start_clients(run, work, task, version)
            if run.checkpointer.due():
                run.checkpoint(Position(task, version))
    for assignment in [*(finished.assignment for finished in unused), *work.end_task()]:
        run.emit(work.lost_event(task, version, assignment, "task ended"))


def _start_clients(run: Run, work: WorkInFlight, task: int, version: int) -> None:
    config = run.config
    client_lr = config.client_lr_of(task, work.answered // config.clients_per_round)
    copies: dict[tuple[str, int], Tensor] = {}
    messages = {c: _message(run, c, task, version, copies) for c in _draw_clients(run, work, task, version)}
    work.start(task, [Assignment(client, version, client_lr, message) for client, message in messages.items()])


def _draw_clients(run: Run, work: WorkInFlight, task: int, version: int) -> list[int]:
    """The clients that start, in ascending order. One that cannot be reached is replaced by another one, so that only
    clients that are drawn are looked at, however many there are."""
    seed, clients = run.config.seed, run.federation.clients
    excluded = {*run.federation.absent, *work.at_work, *(assignment.client for assignment in work.buffer)}
    chosen, attempt = list[int](), 0
    missing = wanted = run.config.clients_per_round - len(work.at_work)
    while True:
        drawn = draw_others(seed, task, version, attempt, clients, excluded, wanted)
        reachable = (client for client in drawn if work.available(task, version, client))
        chosen += islice(reachable, missing - len(chosen))
        if len(chosen) == missing or len(drawn) < wanted:
            return sorted(chosen)
        excluded.update(drawn)
        attempt, wanted = attempt + 1, wanted * 2  # so that few attempts are enough if hardly anybody can be reached


def _message(run: Run, client: int, task: int, version: int, copies: dict[tuple[str, int], Tensor]) -> Broadcast:
    """The message of a client with copies of its vectors, which the server changes while the client is at work."""
    message = with_statistics(run, run.method.broadcast(run.server, client, task, version))
    for name, vector in message.vectors.items():
        key = name, vector.data_ptr()  # clients that get the same vector share its copy
        if key not in copies:
            copies[key] = vector.clone()
        message.vectors[name] = copies[key]
    return message


def _receive(run: Run, work: WorkInFlight, task: int, version: int, finished: Finished) -> None:
    """Put an update into the buffer, or report why there is none that can be used."""
    limit, age = run.config.max_staleness, version - finished.assignment.version
    loss = finished.loss or ("too stale" if limit is not None and age > limit else None)
    if loss is None:
        work.buffer.append(finished.assignment)
    else:
        run.emit(work.lost_event(task, version, finished.assignment, loss))


@dataclass
class StaleWeights:
    """The weights of a step's updates: s(τ), times the number of samples where clients are weighted by it."""

    config: Config
    ages: dict[int, int]
    num_weights: int
    _used: list[tuple[int, float, float]] = field(default_factory=list)
    _total: float = 0.0

    def factor(self, update: Update, weight: float) -> float:
        """The factor of an update that is used, where its weight without staleness is known."""
        scaled = weight * staleness_weight(self.ages[update.client], *self.config.staleness_rule)
        self._total += weight if self.config.staleness_normalise == "count" else scaled
        self._used.append((update.client, scaled, first_norm(update.deltas, self.num_weights)))
        return scaled

    def divisor(self) -> float:
        return self._total

    def origins(self, version: int) -> list[UpdateOrigin]:
        return [
            UpdateOrigin(client, version - self.ages[client], self.ages[client], scaled / self._total, norm)
            for client, scaled, norm in self._used
        ]


def _step(run: Run, work: WorkInFlight, task: int, version: int) -> None:
    config = run.config
    used = sorted(work.buffer, key=lambda assignment: assignment.client)
    work.buffer = []
    finished = work.answered // config.clients_per_round
    work.answered += len(used)
    weights = StaleWeights(
        config, {assignment.client: version - assignment.version for assignment in used}, run.model.layout.num_weights
    )
    rates = [assignment.client_lr for assignment in used] or [config.client_lr_of(task, finished)]
    plan = StepPlan(
        client_lr=max(rates),
        scale=config.buffer_size / config.clients_per_round if config.scale_steps else 1.0,
        weights=weights,
        evaluate=evaluated(config, finished, work.answered // config.clients_per_round),
        plain=config.staleness_normalise == "count" or config.staleness == "constant",
    )
    clients = [assignment.client for assignment in used]
    apply_updates(run, task, version, clients, work.replies(run.engine, task, used), plan)
    run.emit(work.step_event(task, version, weights.origins(version)))


def evaluated(config: Config, before: int, after: int) -> bool:
    """Whether a step that completed the rounds before+1 … after is evaluated; the last step of a task always is."""
    every = config.eval_every
    return bool(every) and after > before and (after // every > before // every or after >= config.rounds)
