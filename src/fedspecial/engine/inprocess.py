"""The default engine: one process, one model reused in place, clients one after another."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from fedspecial.core.events import Event
from fedspecial.core.messages import Broadcast, ClientState, packed_size, update_size
from fedspecial.core.streams import batch_order, preserve_torch_rng
from fedspecial.core.vector import FlatModel
from fedspecial.data.samples import Samples
from fedspecial.engine.base import Messages, QueryReply, Reply, problem_with_result
from fedspecial.engine.clients.client import ClientRunner
from fedspecial.engine.clients.client_states import ClientStates
from fedspecial.engine.clients.payloads import DigestCache, PayloadTracker
from fedspecial.engine.evaluate import classes_of, fixed_subset
from fedspecial.methods.base import Query
from fedspecial.objectives.base import Scores, Scoring, mean_scores

# A generator costs several times as much to make when its code has left the processor's cache, so many are made at
# once; all of a large round would take much memory.
_STREAMS = 64


@dataclass
class InProcess:
    """Needs memory for one model, one delta and one client's batch, whatever the number of clients."""

    runner: ClientRunner
    states: ClientStates
    payloads: PayloadTracker
    _digests: DigestCache = field(default_factory=DigestCache)

    @property
    def workers(self) -> int:
        return 1

    def train(
        self, task: int, round: int, clients: Sequence[int], messages: Messages, client_lr: float
    ) -> Iterator[Reply]:
        self.runner.model.check_views()
        with preserve_torch_rng():
            for at in range(0, len(clients), _STREAMS):
                some = clients[at : at + _STREAMS]
                orders = [batch_order(self.runner.seed, task, round, client) for client in some]
                for client, order in zip(some, orders, strict=True):
                    yield self._train_client(client, messages(client), client_lr, order)

    def _train_client(self, client: int, message: Broadcast, client_lr: float, order: np.random.Generator) -> Reply:
        bytes_down, bytes_once = self.payloads.bytes_down(client, message)
        state = self.states.load(client)
        local = self.runner.train(client, message, state, client_lr, order)
        if local.update is None:
            return Reply(client, None, local.problem, 0, bytes_down, bytes_once)
        self.states.save(client, state)
        bytes_up = update_size(local.update)
        costs = (bytes_up, bytes_down, bytes_once, message.vectors, local.memory, local.paper_memory)
        return Reply(client, local.update, None, *costs)

    def query(self, query: Query) -> Iterator[QueryReply]:
        with preserve_torch_rng():
            for client in range(self.runner.federation.clients) if query.clients is None else query.clients:
                message = query.message(client)
                bytes_down, _ = self.payloads.bytes_down(client, message)
                state = self.states.load(client)
                result = self.runner.answer_query(client, message, state, query.name)
                self.states.save(client, state)
                costs = (packed_size(result.tensors, result.numbers), bytes_down)
                problem = problem_with_result(result, client, query)
                yield QueryReply(client, None if problem else result, problem, *costs)

    def evaluate(
        self,
        messages: Messages,
        tasks: Sequence[int],
        *,
        cap: int | None = None,
        masked: bool = False,
        complete: bool = False,
    ) -> list[Scores | None]:
        scoring = self.runner.objective.scoring(complete=complete)
        found: list[Scores | None] = []
        for task in tasks:
            domain = self.runner.federation.domain(task)
            samples = fixed_subset(domain.test, cap, self.runner.seed, domain.name)
            classes = classes_of(domain.train) if masked else None
            found.append(self.scores(partial(self._message, messages, task), samples, scoring, classes))
        return found

    def _message(self, messages: Messages, task: int, client: int) -> Broadcast:
        return self.runner.for_samples(messages(client), task)

    def scores(
        self, messages: Messages, samples: Samples, scoring: Scoring, classes: Sequence[int] | None = None
    ) -> Scores | None:
        runner = self.runner
        if not runner.method.personal and not runner.keep_batch_norm:
            return runner.scores(0, messages(0), ClientState(), samples, scoring, classes)
        # Clients that have the same message and the same state predict the same, so they are measured once.
        known: dict[Hashable, Scores] = {}
        shared: dict[str, Any] = {}
        every: list[Scores] = []
        for client in range(runner.federation.clients):
            message = messages(client)
            inputs = (self._digests.content(message), self.states.content(client))
            if inputs not in known:
                # What clients compute with BatchNorm statistics of their own cannot be shared.
                scratch = None if runner.keep_batch_norm else shared
                state = self.states.copy(client)
                known[inputs] = runner.scores(client, message, state, samples, scoring, classes, scratch)
            every.append(known[inputs])
        return mean_scores(every, [1] * len(every))

    def set_model(self, model: FlatModel) -> None:
        self.runner.set_model(model)

    def events(self) -> list[Event]:
        return []

    def close(self) -> None:
        """Nothing to end."""

    def checkpoint_state(self) -> tuple[dict[int, str], dict[str, Any]]:
        return self.states.index, self.payloads.to_json()
