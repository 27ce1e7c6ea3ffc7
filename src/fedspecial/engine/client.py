"""The client's side of every engine: one model and a method's client half, used by one client after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.messages import BUFFERS, THETA, Broadcast, ClientState, Tensors, Update
from fedspecial.core.streams import seed_torch, stream
from fedspecial.core.vector import FlatModel
from fedspecial.data.benchmark import Samples
from fedspecial.data.federation import Federation
from fedspecial.engine.evaluate import count_correct
from fedspecial.engine.head import head_of, pad_client_models
from fedspecial.engine.local import LocalTraining, train
from fedspecial.engine.memory import memory_sizes, paper_bytes
from fedspecial.errors import ClientError, InputError
from fedspecial.methods.base import ClientContext, LocalData, Method, ProblemSpec, QueryResult

NO_SAMPLES = "it holds no samples of this task"
BATCH_NORM = "batch_norm"
"""The name of a client's own BatchNorm statistics in its state."""


@dataclass(frozen=True)
class LocalResult:
    """The result of a client's local training: an update, or the reason why there is none, and the memory it took."""

    update: Update | None
    problem: str | None = None
    memory: int = 0
    paper_memory: int = 0


@dataclass
class ClientRunner:
    """Runs the client half of a method. All clients use the same model in memory, one after another."""

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
        """E epochs on the client's own data; `state` is changed in place. The deltas are valid until the next call.

        order: the stream of batch orders, where the caller has made it already
        """
        rows = self.federation.rows(message.task, client)
        if len(rows) == 0:
            return LocalResult(None, NO_SAMPLES)
        context = self._context(client, message, state, rows, client_lr)  # line 7
        order = order or stream(self.seed, "batches", message.task, message.round, client)
        with _located_errors(context, f"round {message.round + 1}"):
            replayed = self.method.replay(context)
            if replayed is not None:
                context.data = context.data.joined(*replayed)
            seed_torch(self.seed, "torch", message.task, message.round, client)
            update = train(self.method, context, self.plan, order)  # lines 8 to 11
        if update.steps == 0:
            return LocalResult(None, f"its {update.samples} samples make no batch")
        update.deltas = self._deltas(message)  # lines 12 and 13
        if self.keep_batch_norm:
            state.tensors[BATCH_NORM] = self.model.buffers.clone()
        self._mark_outputs(state)
        sizes = memory_sizes(context, update, 2 if self.plan.adaptive else int(self.plan.momentum > 0))
        return LocalResult(update, None, sum(sizes.values()), paper_bytes(sizes, context, self.method.memory_excluded))

    def answer_query(self, client: int, message: Broadcast, state: ClientState, query: str) -> QueryResult:
        """Have the method answer a query; `state` is changed in place."""
        context = self._context(client, message, state, self.federation.rows(message.task, client))
        seed_torch(self.seed, f"torch-{query}", message.task, message.round, client)
        self.model.module.eval()
        with _located_errors(context, f"query '{query}'"):
            result = self.method.answer_query(context, query)
        self._mark_outputs(state)
        return result

    def accuracy(
        self,
        client: int,
        message: Broadcast,
        state: ClientState,
        samples: Samples,
        classes: Sequence[int] | None = None,
        scratch: dict[str, Any] | None = None,
    ) -> float:
        """The accuracy of the client's predictions on these samples; arguments as in `count_correct`."""
        return self.count_correct(client, message, state, samples, classes, scratch) / len(samples)

    def count_correct(
        self,
        client: int,
        message: Broadcast,
        state: ClientState,
        samples: Samples,
        classes: Sequence[int] | None = None,
        scratch: dict[str, Any] | None = None,
        first: int = 0,
    ) -> int:
        """How many of these samples the client predicts correctly.

        scratch: passed from one client to the next where they predict the same samples and may share results
        first:   the position of the first sample, where these are a part of a larger set
        """
        context = self._context(client, message, state, np.empty(0, dtype=np.int64))
        context.scratch = {} if scratch is None else scratch
        for network in (self.model, *self.networks.values()):
            network.module.eval()
        seen = first

        def predict(x: Tensor) -> Tensor:
            nonlocal seen
            context.positions, seen = torch.arange(seen, seen + len(x)), seen + len(x)
            context.batch += 1
            return self.method.predict(context, x)

        with _located_errors(context, "prediction"):
            return count_correct(predict, samples, self.federation.benchmark, self.model.vector.device, classes)

    def set_model(self, model: FlatModel) -> None:
        """Use a model of another layout from now on."""
        self.model = model

    def _mark_outputs(self, state: ClientState) -> None:
        if state.models and self.federation.benchmark.incremental == "class":
            state.outputs = head_of(self.model).out_features

    def _context(
        self, client: int, message: Broadcast, state: ClientState, rows: np.ndarray, client_lr: float = 0.0
    ) -> ClientContext:
        """Load the downloaded vectors and collect what the method's client half works with."""
        task, federation = message.task, self.federation
        self._load(message, state)
        if state.models and federation.benchmark.incremental == "class":
            pad_client_models(state, self.model)
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
        if message.key(THETA) in message.vectors:
            self.model.load(message.theta)
        for name, network in self.networks.items():
            if message.key(name) in message.vectors:
                network.load(message.vector(name))
        buffers = state.tensors.get(BATCH_NORM) if self.keep_batch_norm else message.vectors.get(BUFFERS)
        if buffers is not None:
            self.model.buffers.copy_(buffers)
        elif self.keep_batch_norm:
            self.model.reset_buffers()

    def trained(self, message: Broadcast) -> Tensors:
        """The vectors of a message after training; views of the networks, valid until the next call."""
        key = message.key(THETA)
        vectors = {key: self.model.vector[: len(message.vectors[key])]}
        if BUFFERS in message.vectors:
            vectors[BUFFERS] = self.model.buffers
        for name, network in self.networks.items():
            if message.key(name) in message.vectors:
                vectors[message.key(name)] = network.vector
        return vectors

    def _deltas(self, message: Broadcast) -> Tensors:
        """θ_m − θ, and the same for every other network and for statistics that are sent apart from θ."""
        trained = self.trained(message)
        total, at, deltas = sum(len(vector) for vector in trained.values()), 0, {}
        if len(self._delta) != total:
            self._delta = torch.empty(total, device=self.model.vector.device)
        for name, vector in trained.items():
            out = self._delta[at : at + len(vector)]
            deltas[name] = torch.sub(vector, message.vectors[name], out=out)
            at += len(vector)
        return deltas


@contextmanager
def _located_errors(context: ClientContext, activity: str) -> Iterator[None]:
    """Add client, task, activity and batch to an exception of the method; input errors already say what is wrong."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        batch = f", batch {context.batch}" if context.batch else ""
        place = f"client {context.client}, task {context.broadcast.task}, {activity}{batch}"
        text = " ".join(str(error).split())
        raise ClientError(f"{place}: {type(error).__name__}: {text}") from error
