"""What a site does when it is asked: train, answer a stage, test; on its own data, from its own state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedspecial.core.messages import Broadcast, ClientState, Tensors
from fedspecial.core.streams import preserve_torch_rng
from fedspecial.engine.checkpoint import Position
from fedspecial.engine.client import ClientRunner
from fedspecial.engine.evaluate import classes_of, fixed_subset
from fedspecial.errors import InputError
from fedspecial.flower.app import wire
from fedspecial.flower.app.plan import Plan
from fedspecial.flower.app.site_data import site_federation
from fedspecial.flower.app.store import SiteStore
from fedspecial.flower.app.wire import ReplyHeader, Request
from fedspecial.runs.build import fixed_threads, make_client_runner

Work = Callable[[Request, Broadcast, ClientState], tuple[ReplyHeader, Tensors, Tensors]]


class Site:
    """A site under one plan; kept between messages where the process lives that long."""

    def __init__(self, plan: Plan, name: str, node: Mapping[str, Any]) -> None:
        self.name, self.plan, self.number = name, plan, plan.number(name)
        self.resolved = plan.resolved()
        self.federation = site_federation(plan, self.resolved.config, name, node)
        self.states = Path(str(node.get("state", f"fedspecial-site-{name}")))
        self._place: tuple[int, ClientRunner] | None = None

    def train(self, message: Message, request: Request) -> Message:
        return self._work(message, request, self._train)

    def ask(self, message: Message, request: Request) -> Message:
        return self._work(message, request, self._ask)

    def evaluate(self, message: Message, request: Request) -> Message:
        return self._work(message, request, self._evaluate)

    def _work(self, message: Message, request: Request, work: Work) -> Message:
        """Load what the request names, work, and keep the state, if there is any, under the request's version."""
        if request.client != self.number:
            raise InputError(f"site={self.name}: it is client {self.number}, but was asked as client {request.client}")
        store = SiteStore(self.states, request.run)
        held, missing = store.take(request.payloads, wire.tensors_in(message, "payloads"))
        if missing:
            return wire.answer(message, self._answered(request, missing=missing), {}, {})
        state = store.load(request.base)
        if state is None:
            raise InputError(f"site={self.name}: its state '{request.base}' is gone from {store.folder}")
        with fixed_threads(self.resolved.config.threads), preserve_torch_rng():
            answered, vectors, uploads = work(request, wire.broadcast_of(message, request, held), state)
        if request.version and answered.problem is None and state:
            store.save(request.version, state, [*request.keep, request.base])
            answered = replace(answered, kept=True)
        return wire.answer(message, answered, vectors, uploads)

    def _train(
        self, request: Request, broadcast: Broadcast, state: ClientState
    ) -> tuple[ReplyHeader, Tensors, Tensors]:
        place = self._at_work(request.task)
        turn = place.train(self.number, broadcast, state, request.client_lr)
        if turn.update is None:
            return self._answered(request, problem=turn.problem), {}, {}
        update = turn.update
        work = {"steps": update.steps, "samples": update.samples, "loss": update.loss, "numbers": update.numbers}
        answered = self._answered(request, **work, memory=turn.memory, paper_memory=turn.paper_memory)
        return answered, place.trained(broadcast), update.uploads

    def _ask(self, request: Request, broadcast: Broadcast, state: ClientState) -> tuple[ReplyHeader, Tensors, Tensors]:
        said = self._at_work(request.task).answer_query(self.number, broadcast, state, request.stage)
        return self._answered(request, numbers=said.numbers), {}, said.tensors

    def _evaluate(
        self, request: Request, broadcast: Broadcast, state: ClientState
    ) -> tuple[ReplyHeader, Tensors, Tensors]:
        """Right answers and samples of every domain asked for that this site can test."""
        place, counts = self._at_work(request.task), {}
        for task in request.tasks:
            domain = self.federation.domain(task)
            samples = fixed_subset(domain.test, request.cap, self.resolved.config.seed, domain.name)
            if len(samples):
                classes = classes_of(domain.train) if request.masked else None
                share = place.accuracy(self.number, broadcast, state, samples, classes)
                counts[str(task)] = (round(share * len(samples)), len(samples))
        return self._answered(request, counts=counts), {}, {}

    def _at_work(self, task: int) -> ClientRunner:
        """Where training happens, with a model that has the outputs of this task."""
        outputs = self.federation.num_classes(task)
        if self._place is None or self._place[0] != outputs:
            self._place = outputs, make_client_runner(self.resolved, self.federation, None, Position(task, 1))
        return self._place[1]

    def _answered(self, request: Request, **fields: Any) -> ReplyHeader:
        return ReplyHeader(self.name, self.number, request.task, request.round, **fields)
