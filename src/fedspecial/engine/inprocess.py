"""The default engine: one process, one model reused in place, clients one after another."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fedspecial.core.messages import Broadcast, ClientState, Tensors, Update, broadcast_size, packed_size, update_size
from fedspecial.core.streams import preserve_torch_rng, stream
from fedspecial.core.vector import FlatModel
from fedspecial.data.benchmark import Samples
from fedspecial.engine.aggregate import not_finite
from fedspecial.engine.client import ClientRunner
from fedspecial.engine.client_states import ClientStates
from fedspecial.engine.evaluate import classes_of, fixed_subset
from fedspecial.engine.payloads import PayloadTracker
from fedspecial.methods.base import Query, QueryResult

Messages = Callable[[int], Broadcast]


@dataclass(frozen=True)
class Reply:
    """A client's answer to a round: an update, or the reason why there is none; and what it cost.

    bytes_once: the part of bytes_down that is payloads, which are not sent again
    sent:       the vectors it was to change
    memory:     bytes of everything the client had in memory beside its data; paper_memory by the paper's rule
    """

    client: int
    update: Update | None
    problem: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_once: int = 0
    sent: Tensors = field(default_factory=dict)
    memory: int = 0
    paper_memory: int = 0


@dataclass(frozen=True)
class QueryReply:
    """A client's answer to a stage at a task's border; None where it gave none, with the reason."""

    client: int
    answer: QueryResult | None
    problem: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0


def problem_with(answer: QueryResult, client: int, ask: Query) -> str | None:
    """Why an answer to a stage is refused, or None; every engine looks at its answers so."""
    return not_finite(answer.tensors) or ask.fault(client, answer)


class Engine(Protocol):
    """Has clients train, answer and predict, wherever they are.

    A reply's tensors are valid until the next reply is asked for: add them up, do not keep them.
    """

    def train(self, clients: Sequence[int], messages: Messages, client_lr: float) -> Iterator[Reply]: ...

    def ask(self, ask: Query) -> Iterator[QueryReply]: ...

    def accuracies(
        self, messages: Messages, tasks: Sequence[int], *, cap: int | None = None, masked: bool = False
    ) -> list[float | None]:
        """On the test samples of these tasks: of the global model, or the mean over clients where they differ.

        cap: at most so many samples of each · masked: only the classes of the task compete
        """
        ...

    def grown(self, model: FlatModel) -> None:
        """The classifier has a new layout from now on."""
        ...

    def kept(self) -> tuple[dict[int, str], dict[str, Any]]:
        """What a checkpoint has to remember: the clients' states by content, and who holds which payload."""
        ...


@dataclass
class InProcess:
    """Memory is one model, one delta and one client's batch, whatever the number of clients."""

    runner: ClientRunner
    states: ClientStates
    payloads: PayloadTracker

    def train(self, clients: Sequence[int], messages: Messages, client_lr: float) -> Iterator[Reply]:
        self.runner.model.check_views()
        head = messages(clients[0])
        # All at once: a generator costs several times as much to make when its code has left the processor's cache.
        orders = [stream(self.runner.seed, "batches", head.task, head.round, client) for client in clients]
        with preserve_torch_rng():
            for client, order in zip(clients, orders, strict=True):
                yield self._turn(client, messages(client), client_lr, order)

    def _turn(self, client: int, message: Broadcast, client_lr: float, order: np.random.Generator) -> Reply:
        bytes_down, bytes_once = self._deliver(client, message)
        state = self.states.load(client)
        turn = self.runner.train(client, message, state, client_lr, order)
        if turn.update is None:
            return Reply(client, None, turn.problem, 0, bytes_down, bytes_once)
        self.states.save(client, state)
        bytes_up = update_size(turn.update)
        costs = (bytes_up, bytes_down, bytes_once, message.vectors, turn.memory, turn.paper_memory)
        return Reply(client, turn.update, None, *costs)

    def ask(self, ask: Query) -> Iterator[QueryReply]:
        with preserve_torch_rng():
            for client in range(self.runner.federation.clients) if ask.clients is None else ask.clients:
                message = ask.message(client)
                bytes_down, _ = self._deliver(client, message)
                state = self.states.load(client)
                answer = self.runner.answer(client, message, state, ask.stage)
                self.states.save(client, state)
                costs = (packed_size(answer.tensors, answer.numbers), bytes_down)
                problem = problem_with(answer, client, ask)
                yield QueryReply(client, None if problem else answer, problem, *costs)

    def accuracies(
        self, messages: Messages, tasks: Sequence[int], *, cap: int | None = None, masked: bool = False
    ) -> list[float | None]:
        found: list[float | None] = []
        for task in tasks:
            domain = self.runner.federation.domain(task)
            samples = fixed_subset(domain.test, cap, self.runner.seed, domain.name)
            found.append(self.accuracy(messages, samples, classes_of(domain.train) if masked else None))
        return found

    def accuracy(self, messages: Messages, samples: Samples, classes: Sequence[int] | None = None) -> float:
        runner = self.runner
        if not runner.method.personal and not runner.keep_batch_norm:
            return runner.accuracy(0, messages(0), ClientState(), samples, classes)
        # Clients that predict with the same vectors and the same statistics are measured once.
        known: dict[Hashable, float] = {}
        shared: dict[str, Any] = {}
        total, clients = 0.0, runner.federation.clients
        for client in range(clients):
            message = messages(client)
            own = self.states.index.get(client, "") if runner.keep_batch_norm else ""
            view = (tuple(message.vectors), tuple(message.numbers.items()), own)
            if view not in known:
                state = self.states.load(client) if own else ClientState()
                scratch = None if runner.keep_batch_norm else shared
                known[view] = runner.accuracy(client, message, state, samples, classes, scratch)
            total += known[view]
        return total / clients

    def grown(self, model: FlatModel) -> None:
        self.runner.grown(model)

    def kept(self) -> tuple[dict[int, str], dict[str, Any]]:
        return self.states.index, self.payloads.to_json()

    def _deliver(self, client: int, message: Broadcast) -> tuple[int, int]:
        """Bytes that go down, and the part of them that is payloads."""
        held = self.payloads.deliver(client, message)
        whole = broadcast_size(message, held=held)
        return whole, whole - broadcast_size(message, held=frozenset(message.payloads))
