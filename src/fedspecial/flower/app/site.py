"""A site's work: training, queries of the method and evaluation, on its own data and from its own client state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Message
from torch import Tensor

from fedspecial.core.messages import Broadcast, ClientState, Tensors
from fedspecial.core.streams import preserve_torch_rng
from fedspecial.data.samples import Samples
from fedspecial.data.stream_schedule import STREAM_ROUND
from fedspecial.engine.checkpoint import Position
from fedspecial.engine.clients.client import ClientRunner
from fedspecial.engine.evaluate import classes_of, fixed_subset
from fedspecial.errors import InputError
from fedspecial.flower.app import wire
from fedspecial.flower.app.site_data import SiteData
from fedspecial.flower.app.site_faults import SiteError, faults_as, state_folder, write_to_log
from fedspecial.flower.app.site_plan import SitePlan
from fedspecial.flower.app.site_receipts import keep_receipt
from fedspecial.flower.app.site_store import SiteStore
from fedspecial.flower.app.wire import ReplyHeader, SiteRequest
from fedspecial.flower.governance.site_policy import SitePolicy
from fedspecial.flower.governance.site_settings import PolicyError
from fedspecial.objectives.base import Scores
from fedspecial.runs.build import make_client_runner
from fedspecial.runs.devices import torch_settings

Outputs = tuple[ReplyHeader, Tensors, Tensors]
"""Header, vectors and uploads of a reply."""
Handler = Callable[[SiteRequest, Broadcast, ClientState], Outputs]


class Site:
    """A site under one plan. It is reused for further messages if the process stays alive."""

    def __init__(self, plan: SitePlan, name: str, policy: SitePolicy, node_config: Mapping[str, Any]) -> None:
        self.name, self.plan, self.policy, self.client = name, plan, policy, plan.client_number(name)
        self.resolved = plan.resolved(policy)
        with faults_as("data"):
            self._data = SiteData(plan, self.resolved, name, policy, node_config)
        self.state_folder = state_folder(name, node_config)
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
            raise PolicyError(f"this site is client {self.client}, the request is for {request.client}")
        with faults_as("state"):
            store = SiteStore(self.state_folder, request.run)
        with faults_as("audit"):
            keep_receipt(store.folder, request.run, request.audit, self.policy.server_key)
        with faults_as("state"):
            payloads, missing = store.update_payloads(request.payloads, wire.read_tensors(message, "payloads"))
            if missing:
                return wire.make_reply(message, self._header(request, missing=missing), {}, {})
            state = store.load_state(request.base)
            if state is None:
                raise InputError(f"site={self.name}: client state '{request.base}' is missing from {store.folder}")
        with torch_settings(self.resolved.config), preserve_torch_rng():
            header, vectors, uploads = handler(request, wire.read_broadcast(message, request, payloads), state)
        if request.version and header.problem is None and state:
            with faults_as("state"):
                store.save_state(request.version, state, [*request.keep, request.base])
            header = replace(header, state_saved=True)
        return wire.make_reply(message, header, vectors, uploads)

    def _train(self, request: SiteRequest, broadcast: Broadcast, state: ClientState) -> Outputs:
        runner = self._runner_with_data(request)
        self._check_groups(request.task, runner)
        result = runner.train(self.client, broadcast, state, request.client_lr)
        if result.update is None:
            return self._header(request, problem=result.problem), {}, {}
        update = result.update
        fields = {"steps": update.steps, "samples": update.samples, "loss": update.loss, "numbers": update.numbers}
        header = self._header(request, **fields, memory=result.memory, paper_memory=result.paper_memory)
        return header, runner.trained(broadcast), update.uploads

    def _query(self, request: SiteRequest, broadcast: Broadcast, state: ClientState) -> Outputs:
        runner = self._runner_with_data(request)
        self._check_groups(request.task, runner)
        result = runner.answer_query(self.client, broadcast, state, request.query)
        return self._header(request, numbers=result.numbers), {}, result.tensors

    def _evaluate(self, request: SiteRequest, broadcast: Broadcast, state: ClientState) -> Outputs:
        """Metrics, correct predictions and samples for every requested domain that this site can test."""
        counts, metrics, untested = {}, {}, {}
        for task in request.tasks:
            try:
                with faults_as("failed"):
                    if (found := self._test(task, request, broadcast, state)) is not None:
                        counts[str(task)], metrics[str(task)] = found
            except SiteError as fault:
                write_to_log(self.state_folder, fault, f"test of task {task}")
                untested[str(task)] = fault.text(redact=self.policy.redact_errors)
        return self._header(request, counts=counts, metrics=metrics, untested=untested), {}, {}

    def _test(
        self, task: int, request: SiteRequest, broadcast: Broadcast, state: ClientState
    ) -> tuple[tuple[int, int], Scores] | None:
        """(correct predictions and samples, metrics) on one domain; None if the site has no test samples of it."""
        self._data.read(task)
        runner, federation = self._runner_for(request.task), self._data.federation
        objective, domain = runner.objective, federation.domain(task)
        scoring = objective.scoring(complete=request.complete and self._complete_allowed(domain.test))
        samples = fixed_subset(domain.test, request.cap, self.resolved.config.seed, domain.name)
        if not len(samples):
            return None
        self.policy.check_groups([len(samples)])
        classes = classes_of(domain.train) if request.masked else None
        scores = runner.scores(self.client, broadcast, state, samples, scoring, classes)
        accuracy = scores[objective.main.name] if objective.counts_correct else None
        correct = round(accuracy * len(samples)) if isinstance(accuracy, float) else 0
        return (correct, len(samples)), scores

    def _check_groups(self, task: int, runner: ClientRunner) -> None:
        """At least `min_group` samples; of each class too, if the method sends more than one sum over all of them."""
        rows = self._data.federation.rows(task, self.client)
        targets = self._data.federation.domain(task).train.y[torch.from_numpy(rows)]
        self.policy.check_groups([len(rows)])
        if not type(runner.method).needs_only_sum:
            self.policy.check_groups(_class_sizes(targets))

    def _complete_allowed(self, samples: Samples) -> bool:
        """Metrics of single classes are sent only if all classes have enough test samples."""
        return not any(0 < size < self.policy.min_group for size in _class_sizes(samples.y))

    def frozen_sha256(self) -> str:
        """Hash of the frozen part of this site's model; empty if it has none."""
        return self._runner_for(1).model.layout.frozen or ""

    def _runner_with_data(self, request: SiteRequest) -> ClientRunner:
        """Where the stream has a time of its own, the data is that of the time and not of the task."""
        time, schedule = request.numbers.get(STREAM_ROUND), self._data.federation.schedule
        if time is None or schedule is None:
            self._data.read(request.task)
        else:
            for share in schedule.shares(self.client, int(time)):
                self._data.read(share.visit)
        return self._runner_for(request.task)

    def _runner_for(self, task: int) -> ClientRunner:
        """A client runner whose model has as many outputs as there are classes in this task."""
        federation = self._data.federation
        outputs = federation.num_classes(task)
        if self._runner is None or self._runner[0] != outputs:
            self._runner = outputs, make_client_runner(self.resolved, federation, None, Position(task, 1))
        self._runner[1].federation = federation  # the data of a further task may have been read
        return self._runner[1]

    def _header(self, request: SiteRequest, **fields: Any) -> ReplyHeader:
        return ReplyHeader(self.name, self.client, request.task, request.round, **fields)


def _class_sizes(targets: Tensor) -> list[int]:
    """Samples of each class; nothing where the targets are not classes."""
    if targets.ndim != 1 or targets.is_floating_point() or not len(targets):
        return []
    return [int(size) for size in torch.unique(targets, return_counts=True)[1]]
