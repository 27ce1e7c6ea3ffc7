"""The client's side of every engine: one model and a method's client half, used by one client after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.messages import Broadcast, ClientState, Tensors, Update
from fedspecial.core.streams import follow, stream
from fedspecial.core.vector import FlatModel
from fedspecial.data.benchmark import Samples
from fedspecial.engine.evaluate import accuracy
from fedspecial.engine.federation import Federation
from fedspecial.engine.grow import fitted
from fedspecial.engine.local import LocalPlan, train
from fedspecial.engine.memory import held, paper_bytes
from fedspecial.methods.base import Answer, Local, LocalData, Method, World

NO_SAMPLES = "it holds no samples of this task"


@dataclass(frozen=True)
class Turn:
    """What a client's turn came to: an update, or the reason why there is none; and the memory it took."""

    update: Update | None
    problem: str | None = None
    memory: int = 0
    paper_memory: int = 0


@dataclass
class Workplace:
    """Where clients train, answer and predict. What one of them leaves here, the next one overwrites."""

    federation: Federation
    method: Method
    model: FlatModel
    networks: dict[str, FlatModel]
    world: World
    plan: LocalPlan
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
    ) -> Turn:
        """E epochs on the client's own data; `state` is changed in place. The deltas are valid until the next turn.

        order: the stream of batch orders, where the caller has made it already
        """
        rows = self.federation.rows(message.task, client)
        if len(rows) == 0:
            return Turn(None, NO_SAMPLES)
        local = self._enter(client, message, state, rows, client_lr)
        replayed = self.method.replay(local)
        if replayed is not None:
            local.data = local.data.joined(*replayed)
        follow(self.seed, "torch", message.task, message.round, client)
        order = order or stream(self.seed, "batches", message.task, message.round, client)
        update = train(self.method, local, self.plan, order)
        if update.steps == 0:
            return Turn(None, f"its {update.samples} samples make no batch")
        update.deltas = self._deltas(message)
        if self.keep_batch_norm:
            state.tensors["batch_norm"] = self.model.buffers.clone()
        sizes = held(local, update, 2 if self.plan.adaptive else int(self.plan.momentum > 0))
        return Turn(update, None, sum(sizes.values()), paper_bytes(sizes, local, self.method.uncounted))

    def answer(self, client: int, message: Broadcast, state: ClientState, stage: str) -> Answer:
        """Run a named stage; `state` is changed in place."""
        local = self._enter(client, message, state, self.federation.rows(message.task, client))
        follow(self.seed, f"torch-{stage}", message.task, message.round, client)
        self.model.module.eval()
        return self.method.answer(local, stage)

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
        local = self._enter(client, message, state, np.empty(0, dtype=np.int64))
        local.scratch = {} if scratch is None else scratch
        for network in (self.model, *self.networks.values()):
            network.module.eval()
        seen = 0

        def predict(x: Tensor) -> Tensor:
            nonlocal seen
            local.positions, seen = torch.arange(seen, seen + len(x)), seen + len(x)
            return self.method.predict(local, x)

        return accuracy(predict, samples, self.federation.benchmark, self.model.vector.device, classes)

    def grown(self, model: FlatModel) -> None:
        """From now on, work with a model of another layout."""
        self.model = model

    def _enter(
        self, client: int, message: Broadcast, state: ClientState, rows: np.ndarray, client_lr: float = 0.0
    ) -> Local:
        """Load what was downloaded; the client's view of its turn."""
        task, federation = message.task, self.federation
        self._load(message, state)
        if federation.benchmark.incremental == "class":
            state.tensors = fitted(state.tensors, self.model)
        samples, device = federation.domain(task).train, self.model.vector.device
        data = LocalData(samples.x, samples.y, rows, federation.benchmark.inputs, device)
        return Local(
            client,
            self.model,
            message,
            state,
            self.seed,
            client_lr,
            federation.num_classes(task),
            federation.num_classes(task - 1) if task > 1 else 0,
            self.world,
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
