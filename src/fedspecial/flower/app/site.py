"""A site's work: training, queries of the method and evaluation, on its own data and from its own client state."""

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
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.app.site_data import site_federation
from fedspecial.flower.app.site_receipts import keep_receipt
from fedspecial.flower.app.site_store import SiteStore
from fedspecial.flower.app.wire import ReplyHeader, SiteRequest
from fedspecial.runs.build import make_client_runner
from fedspecial.runs.devices import torch_settings

Outputs = tuple[ReplyHeader, Tensors, Tensors]
"""Header, vectors and uploads of a reply."""
Handler = Callable[[SiteRequest, Broadcast, ClientState], Outputs]


class Site:
    """A site under one plan. It is reused for further messages if the process stays alive."""

    def __init__(self, plan: FederationPlan, name: str, node_config: Mapping[str, Any]) -> None:
        self.name, self.plan, self.client = name, plan, plan.client_number(name)
        self.resolved = plan.resolved()
        self.federation = site_federation(plan, self.resolved, name, node_config)
        self.state_folder = Path(str(node_config.get("state", f"fedspecial-site-{name}")))
        self._runner: tuple[int, ClientRunner] | None = None

    def train(self, message: Message, request: SiteRequest) -> Message:
        return self._handle(message, request, self._train)

    def query(self, message: Message, request: SiteRequest) -> Message:
        return self._handle(message, request, self._query)

    def evaluate(self, message: Message, request: SiteRequest) -> Message:
        return self._handle(message, request, self._evaluate)

    def _handle(self, message: Message, request: SiteRequest, handler: Handler) -> Message:
        """Load payloads and client state, call the handler, and store the client state under the requested version."""
        if request.client != self.client:
            raise InputError(f"site={self.name}: it is client {self.client}, the request is for {request.client}")
        store = SiteStore(self.state_folder, request.run)
        keep_receipt(store.folder, request.run, request.audit)
        payloads, missing = store.update_payloads(request.payloads, wire.read_tensors(message, "payloads"))
        if missing:
            return wire.make_reply(message, self._header(request, missing=missing), {}, {})
        state = store.load_state(request.base)
        if state is None:
            raise InputError(f"site={self.name}: client state '{request.base}' is missing from {store.folder}")
        with torch_settings(self.resolved.config), preserve_torch_rng():
            header, vectors, uploads = handler(request, wire.read_broadcast(message, request, payloads), state)
        if request.version and header.problem is None and state:
            store.save_state(request.version, state, [*request.keep, request.base])
            header = replace(header, state_saved=True)
        return wire.make_reply(message, header, vectors, uploads)

    def _train(self, request: SiteRequest, broadcast: Broadcast, state: ClientState) -> Outputs:
        runner = self._runner_for(request.task)
        result = runner.train(self.client, broadcast, state, request.client_lr)
        if result.update is None:
            return self._header(request, problem=result.problem), {}, {}
        update = result.update
        fields = {"steps": update.steps, "samples": update.samples, "loss": update.loss, "numbers": update.numbers}
        header = self._header(request, **fields, memory=result.memory, paper_memory=result.paper_memory)
        return header, runner.trained(broadcast), update.uploads

    def _query(self, request: SiteRequest, broadcast: Broadcast, state: ClientState) -> Outputs:
        result = self._runner_for(request.task).answer_query(self.client, broadcast, state, request.query)
        return self._header(request, numbers=result.numbers), {}, result.tensors

    def _evaluate(self, request: SiteRequest, broadcast: Broadcast, state: ClientState) -> Outputs:
        """Metrics, correct predictions and samples for every requested domain that this site can test."""
        runner, counts, metrics = self._runner_for(request.task), {}, {}
        objective = runner.objective
        scoring = objective.scoring(complete=request.complete)
        for task in request.tasks:
            domain = self.federation.domain(task)
            samples = fixed_subset(domain.test, request.cap, self.resolved.config.seed, domain.name)
            if len(samples):
                classes = classes_of(domain.train) if request.masked else None
                scores = runner.scores(self.client, broadcast, state, samples, scoring, classes)
                accuracy = scores[objective.main.name] if objective.counts_correct else None
                correct = round(accuracy * len(samples)) if isinstance(accuracy, float) else 0
                counts[str(task)], metrics[str(task)] = (correct, len(samples)), scores
        return self._header(request, counts=counts, metrics=metrics), {}, {}

    def frozen_sha256(self) -> str:
        """Hash of the frozen part of this site's model; empty if it has none."""
        return self._runner_for(1).model.layout.frozen or ""

    def _runner_for(self, task: int) -> ClientRunner:
        """A client runner whose model has as many outputs as there are classes in this task."""
        outputs = self.federation.num_classes(task)
        if self._runner is None or self._runner[0] != outputs:
            self._runner = outputs, make_client_runner(self.resolved, self.federation, None, Position(task, 1))
        return self._runner[1]

    def _header(self, request: SiteRequest, **fields: Any) -> ReplyHeader:
        return ReplyHeader(self.name, self.client, request.task, request.round, **fields)
