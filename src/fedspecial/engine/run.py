"""A run: its parts, its current state, and what every step of it needs: events, messages, measurements."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedspecial.config import Config
from fedspecial.core.events import Event, EventLog
from fedspecial.core.frozen import tensors_sha256
from fedspecial.core.messages import BUFFERS, Broadcast, ServerState, Tensors
from fedspecial.core.statistics_bank import sets_by_buffer, sets_in
from fedspecial.core.vector import FlatModel
from fedspecial.data.federation import Federation
from fedspecial.data.stream_schedule import STREAM_ROUND
from fedspecial.engine import bank
from fedspecial.engine.aggregation.privacy import PrivateAggregation
from fedspecial.engine.base import Engine
from fedspecial.engine.checkpoint import Checkpointer, Position
from fedspecial.engine.in_flight import WorkInFlight
from fedspecial.engine.method_checks import check_broadcast
from fedspecial.methods.base import Method, ProblemSpec, ServerContext
from fedspecial.objectives.base import Objective, Scores
from fedspecial.objectives.classification import CLASSIFICATION


@dataclass
class Run:
    """The parts of a run and its current state.

    vector:  the complete global model; `server.theta` is a view of the part that the method averages, and the rest are
             BatchNorm statistics that are treated in another way
    model, networks: shared with the engine, so load a vector before each use
    certify: (events so far, task) → the certificate of a task that has ended
    ends_early: (task, finished rounds) → whether the task ends before all its rounds
    place:   where the stream of domains is: (task, round) as announced. The method's own task is another one where
             tasks are detected
    private: clipping, noise and accounting of differential privacy
    quorum:  with fewer usable updates than this, a round does not change the model; called after the last reply
    work:    the simulated clock, and in asynchronous mode the work that is in flight
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
    objective: Objective = CLASSIFICATION
    certify: Callable[[list[dict[str, Any]], int], Event] | None = None
    ends_early: Callable[[int, int], bool] = lambda task, rounds: False
    quorum: Callable[[], int] = lambda: 1
    private: PrivateAggregation | None = None
    work: WorkInFlight | None = None
    place: Position = field(default_factory=Position)

    @property
    def time(self) -> int:
        """The current round, counted over the whole run from 0."""
        return (self.place.task - 1) * self.config.rounds + self.place.round

    @property
    def detects(self) -> bool:
        """Whether tasks are detected and not announced."""
        return self.config.detect != "none"

    @property
    def learned_task(self) -> Position:
        """(task, round) as the method counts them: announced, or since the last task that was detected."""
        if not self.detects:
            return self.place
        return Position(self.server.tasks_begun, self.time - self.server.task_began)

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

    def model_sha256(self) -> str:
        """The hash of the global model, and of the BatchNorm statistics of earlier tasks that it predicts with."""
        sha256 = self.model.layout.digest(self.vector)
        sets = sets_in(self.server.tensors)
        return hashlib.sha256((sha256 + tensors_sha256(sets)).encode()).hexdigest() if sets else sha256

    def model_state(self) -> Tensors:
        """The state of the global model as its file contains it, without the frozen part."""
        sets = sets_by_buffer(sets_in(self.server.tensors), self.model.layout)
        return self.model.state_of(self.vector) | sets

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
            work=self.work.to_json(self.checkpointer) if self.work else {},
        )


def with_statistics(run: Run, message: Broadcast, *, query: bool = False) -> Broadcast:
    """Add the BatchNorm statistics to a message where they are averaged apart from the weights, and the round of the
    stream where the data of a client does not follow from the task.

    A client that trains sends back the change of every vector, so a message without vectors gets none; a query may have
    its models among the payloads, and needs the statistics too.
    """
    check_broadcast(run.method, message)
    if run.detects or run.config.stream_width:
        message.numbers[STREAM_ROUND] = run.time
    apart = run.config.batch_norm in ("mean-only", "bank") and len(run.statistics) > 0
    if apart and (message.vectors or query):
        message.vectors[BUFFERS] = run.statistics
        bank.add_sets(run.server, message)
    return message


def measure(
    run: Run, after: int, tasks: Sequence[int], *, cap: int | None = None, masked: bool = False, complete: bool = False
) -> list[Scores | None]:
    """Metrics on the domains of `tasks` during or after task `after`; None where no client has test samples."""

    def message(client: int) -> Broadcast:
        return with_statistics(run, run.method.eval_broadcast(run.server, client, after))

    return run.engine.evaluate(message, tasks, cap=cap, masked=masked, complete=complete)
