"""The client's side of every engine: one model and a method's client half, used by one client after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.messages import Broadcast, ClientState, Tensors, Update
from fedspecial.core.streams import seed_torch, stream
from fedspecial.core.vector import FlatModel
from fedspecial.data.benchmark import Samples
from fedspecial.data.federation import Federation
from fedspecial.engine.evaluate import accuracy
from fedspecial.engine.head import pad_to_layout
from fedspecial.engine.local import LocalTraining, train
from fedspecial.engine.memory import held, paper_bytes
from fedspecial.methods.base import ClientContext, LocalData, Method, ProblemSpec, QueryResult

NO_SAMPLES = "it holds no samples of this task"


@dataclass(frozen=True)
class LocalResult:
    """What a client's turn came to: an update, or the reason why there is none; and the memory it took."""

    update: Update | None
    problem: str | None = None
    memory: int = 0
    paper_memory: int = 0


@dataclass
class ClientRunner:
    """Where clients train, answer and predict. What one of them leaves here, the next one overwrites."""

    federation: Federation
    method: Method
    model: FlatModel
    networks: dict[str, FlatModel]
    problem: ProblemSpec
    plan: LocalTraining
    seed: int
    keep_batch_norm: bool = False
    _delta: Tensor = field(default_factory=lambda: torch.empty(0))

    def train(
        self,
        client: int,
        message: Broadcast,
        state: ClientState,
        client_lr: float,
        order: np.random.Generator | None = None,
    ) -> LocalResult:
        """E epochs on the client's own data; `state` is changed in place. The deltas are valid until the next turn.

        order: the stream of batch orders, where the caller has made it already
        """
        rows = self.federation.rows(message.task, client)
        if len(rows) == 0:
            return LocalResult(None, NO_SAMPLES)
        context = self._enter(client, message, state, rows, client_lr)
        replayed = self.method.replay(context)
        if replayed is not None:
            context.data = context.data.joined(*replayed)
        seed_torch(self.seed, "torch", message.task, message.round, client)
        order = order or stream(self.seed, "batches", message.task, message.round, client)
        update = train(self.method, context, self.plan, order)
        if update.steps == 0:
            return LocalResult(None, f"its {update.samples} samples make no batch")
        update.deltas = self._deltas(message)
        if self.keep_batch_norm:
            state.tensors["batch_norm"] = self.model.buffers.clone()
        sizes = held(context, update, 2 if self.plan.adaptive else int(self.plan.momentum > 0))
        return LocalResult(update, None, sum(sizes.values()), paper_bytes(sizes, context, self.method.memory_excluded))

    def answer(self, client: int, message: Broadcast, state: ClientState, stage: str) -> QueryResult:
        """Run a named stage; `state` is changed in place."""
        context = self._enter(client, message, state, self.federation.rows(message.task, client))
        seed_torch(self.seed, f"torch-{stage}", message.task, message.round, client)
        self.model.module.eval()
        return self.method.answer(context, stage)

    def accuracy(
        self,
        client: int,
        message: Broadcast,
        state: ClientState,
        samples: Samples,
        classes: Sequence[int] | None = None,
        scratch: dict[str, Any] | None = None,
    ) -> float:
        """How well the client predicts these samples.

        scratch: handed from one client to the next where they predict the same samples and may share what they found
        """
        context = self._enter(client, message, state, np.empty(0, dtype=np.int64))
        context.scratch = {} if scratch is None else scratch
        for network in (self.model, *self.networks.values()):
            network.module.eval()
        seen = 0

        def predict(x: Tensor) -> Tensor:
            nonlocal seen
            context.positions, seen = torch.arange(seen, seen + len(x)), seen + len(x)
            return self.method.predict(context, x)

        return accuracy(predict, samples, self.federation.benchmark, self.model.vector.device, classes)

    def grown(self, model: FlatModel) -> None:
        """From now on, work with a model of another layout."""
        self.model = model

    def _enter(
        self, client: int, message: Broadcast, state: ClientState, rows: np.ndarray, client_lr: float = 0.0
    ) -> ClientContext:
        """Load what was downloaded; the client's view of its turn."""
        task, federation = message.task, self.federation
        self._load(message, state)
        if federation.benchmark.incremental == "class":
            state.tensors = pad_to_layout(state.tensors, self.model)
        samples, device = federation.domain(task).train, self.model.vector.device
        data = LocalData(samples.x, samples.y, rows, federation.benchmark.inputs, device)
        return ClientContext(
            client,
            self.model,
            message,
            state,
            self.seed,
            client_lr,
            federation.num_classes(task),
            federation.num_classes(task - 1) if task > 1 else 0,
            self.problem,
            data,
            self.networks,
        )

    def _load(self, message: Broadcast, state: ClientState) -> None:
        if message.key("theta") in message.vectors:
            self.model.load(message.theta)
        for name, network in self.networks.items():
            if message.key(name) in message.vectors:
                network.load(message.vector(name))
        buffers = state.tensors.get("batch_norm") if self.keep_batch_norm else message.vectors.get("buffers")
        if buffers is not None:
            self.model.buffers.copy_(buffers)
        elif self.keep_batch_norm:
            self.model.reset_buffers()

    def trained(self, message: Broadcast) -> Tensors:
        """What became of the vectors of a message; views of the networks, valid until the next turn."""
        size = len(message.theta)
        vectors = {message.key("theta"): self.model.vector[:size]}
        if "buffers" in message.vectors:
            vectors["buffers"] = self.model.buffers
        for name, network in self.networks.items():
            if message.key(name) in message.vectors:
                vectors[message.key(name)] = network.vector
        return vectors

    def _deltas(self, message: Broadcast) -> Tensors:
        """θ_m − θ, and the same for every network and for statistics that travel beside it."""
        trained = self.trained(message)
        total, at, deltas = sum(len(vector) for vector in trained.values()), 0, {}
        if len(self._delta) != total:
            self._delta = torch.empty(total, device=self.model.vector.device)
        for name, vector in trained.items():
            out = self._delta[at : at + len(vector)]
            deltas[name] = torch.sub(vector, message.vectors[name], out=out)
            at += len(vector)
        return deltas
