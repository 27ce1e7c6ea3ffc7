"""The client's side of every engine: one model and a method's client half, used by one client after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.batches import Batch, batch_length
from fedspecial.core.messages import BUFFERS, THETA, Broadcast, ClientState, Tensors, Update
from fedspecial.core.refusals import NO_SAMPLES
from fedspecial.core.statistics_bank import StatisticsBank, sets_in
from fedspecial.core.streams import batch_order, seed_torch
from fedspecial.core.vector import FlatModel
from fedspecial.data.federation import ClientSamples, Federation
from fedspecial.data.read_on_demand import DatasetInputs
from fedspecial.data.samples import Samples
from fedspecial.data.stream_schedule import STREAM_ROUND
from fedspecial.engine.clients.local import LocalTraining, train
from fedspecial.engine.clients.memory import memory_sizes, paper_bytes
from fedspecial.engine.evaluate import summarize
from fedspecial.engine.head import head_of, pad_client_models
from fedspecial.engine.method_checks import check_answer, check_client_state, check_uploads, check_vectors
from fedspecial.errors import ClientError, InputError
from fedspecial.methods.base import ClientContext, LocalData, Method, ProblemSpec, QueryResult
from fedspecial.objectives.base import Objective, Scores, Scoring, Summary
from fedspecial.objectives.classification import CLASSIFICATION

BATCH_NORM = "batch_norm"
"""The name of a client's own BatchNorm statistics in its state."""
TASK_OF_SAMPLES = "task_of_samples"
"""The number in a message that names the task whose statistics predict, where the bank does not choose."""


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
    objective: Objective = CLASSIFICATION
    bank_temperature: float = 0.2
    bank_by_task: bool = False
    _delta: Tensor = field(default_factory=lambda: torch.empty(0))
    _moved: dict[int, tuple[Tensor, Tensor] | None] = field(default_factory=dict)

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
        own = samples_of(self.federation, message, client)
        if len(own.rows) == 0:
            return LocalResult(None, NO_SAMPLES)
        context = self._context(client, message, state, own, client_lr)  # line 7
        order = order or batch_order(self.seed, message.task, message.round, client)
        with _located_errors(context, f"round {message.round + 1}"):
            replayed = self.method.replay(context)
            if replayed is not None:
                context.data = context.data.joined(*replayed)
            seed_torch(self.seed, "torch", message.task, message.round, client)
            update = train(self.method, context, self.plan, order)  # lines 8 to 11
        check_client_state(self.method, "its client half", state)
        check_uploads(self.method, context)
        if update.steps == 0:
            return LocalResult(None, f"its {update.samples} samples make no batch")
        self.model.read_buffer_copies()
        update.deltas = self._deltas(message)  # lines 12 and 13
        if self.keep_batch_norm:
            state.tensors[BATCH_NORM] = self.model.buffers.clone()
        self._mark_outputs(state)
        sizes = memory_sizes(context, update, 2 if self.plan.adaptive else int(self.plan.momentum > 0))
        return LocalResult(update, None, sum(sizes.values()), paper_bytes(sizes, context, self.method.memory_excluded))

    def answer_query(self, client: int, message: Broadcast, state: ClientState, query: str) -> QueryResult:
        """Have the method answer a query; `state` is changed in place."""
        context = self._context(client, message, state, samples_of(self.federation, message, client))
        seed_torch(self.seed, f"torch-{query}", message.task, message.round, client)
        self.model.module.eval()
        with _located_errors(context, f"query '{query}'"):
            result = check_answer(self.method, self.method.answer_query(context, query))
        check_client_state(self.method, "answer_query", state)
        self._mark_outputs(state)
        return result

    def scores(
        self,
        client: int,
        message: Broadcast,
        state: ClientState,
        samples: Samples,
        scoring: Scoring,
        classes: Sequence[int] | None = None,
        scratch: dict[str, Any] | None = None,
    ) -> Scores:
        """The metrics of the client's predictions on these samples; arguments as in `summarize`."""
        return scoring.scores(self.summarize(client, message, state, samples, scoring, classes, scratch))

    def summarize(
        self,
        client: int,
        message: Broadcast,
        state: ClientState,
        samples: Samples,
        scoring: Scoring,
        classes: Sequence[int] | None = None,
        scratch: dict[str, Any] | None = None,
        first: int = 0,
    ) -> Summary:
        """What the metrics need of the client's predictions on these samples.

        scratch: passed from one client to the next where they predict the same samples and may share results
        first:   the position of the first sample, where these are a part of a larger set
        """
        nothing = ClientSamples(self.federation.domain(message.task).train, np.empty(0, dtype=np.int64), None)
        context = self._context(client, message, state, nothing)
        context.scratch = {} if scratch is None else scratch
        for network in (self.model, *self.networks.values()):
            network.module.eval()
        seen = first

        def predict(x: Batch) -> Tensor:
            nonlocal seen
            count = batch_length(x)
            context.positions, seen = torch.arange(seen, seen + count), seen + count
            context.batch += 1
            return self.method.predict(context, x)

        with _located_errors(context, "prediction"), self._bank(message):
            device = self.model.vector.device
            return summarize(predict, samples, self.federation.benchmark, device, scoring, classes)

    def for_samples(self, message: Broadcast, task: int) -> Broadcast:
        """The message to predict test samples of a task with; only with `bank_choice=task` does it say which task."""
        if not self.bank_by_task:
            return message
        return replace(message, numbers={**message.numbers, TASK_OF_SAMPLES: task})

    def _bank(self, message: Broadcast) -> AbstractContextManager[None]:
        """Predict with the statistics of earlier tasks, where the message has some, and the current ones."""
        stored = list(sets_in(message.payloads).values())
        if TASK_OF_SAMPLES in message.numbers:
            stored = stored[int(message.numbers[TASK_OF_SAMPLES]) - 1 :][:1]
            if stored:
                self.model.load_buffers(stored[0])  # the next message loads its own
            return nullcontext()
        if not stored:
            return nullcontext()
        sets, model = [*stored, self.model.buffers.clone()], self.model
        return StatisticsBank.of_vectors(model.module, model.layout, sets, self.bank_temperature).active()

    def set_model(self, model: FlatModel) -> None:
        """Use a model of another layout from now on."""
        self.model = model

    def _mark_outputs(self, state: ClientState) -> None:
        if state.models and self.federation.benchmark.incremental == "class":
            state.outputs = head_of(self.model).out_features

    def _context(
        self, client: int, message: Broadcast, state: ClientState, own: ClientSamples, client_lr: float = 0.0
    ) -> ClientContext:
        """Load the downloaded vectors and collect what the method's client half works with."""
        task, federation = message.task, self.federation
        self._load(message, state)
        if state.models and federation.benchmark.incremental == "class":
            pad_client_models(state, self.model)
        samples, device = own.samples, self.model.vector.device
        on_device = None
        if own.domain is not None and len(own.rows) and device.type != "cpu":
            on_device = self._on_device(own.domain)
        x: Any = samples.x
        if isinstance(x, DatasetInputs):
            x = x.seeded(self.seed, task, message.round, client)
        data = LocalData(x, samples.y, own.rows, federation.benchmark.inputs, device, on_device, own.version)
        return ClientContext(
            client=client,
            model=self.model,
            broadcast=message,
            state=state,
            seed=self.seed,
            lr=client_lr,
            num_classes=federation.num_classes(task),
            old_classes=federation.num_classes(task - 1) if task > 1 else 0,
            problem=self.problem,
            data=data,
            networks=self.networks,
            objective=self.objective,
        )

    def _on_device(self, domain: int) -> tuple[Tensor, Tensor] | None:
        """The samples of a domain on the model's device, moved there once; None if they do not fit."""
        if domain not in self._moved:
            self._moved.clear()  # before the new ones need memory
            samples, device = self.federation.domain(domain).train, self.model.vector.device
            if not isinstance(samples.x, Tensor):
                self._moved[domain] = None  # read when a batch needs it
                return None
            try:
                self._moved[domain] = samples.x.to(device), samples.y.to(device)
            except torch.OutOfMemoryError:
                self._moved[domain] = None
        return self._moved[domain]

    def _load(self, message: Broadcast, state: ClientState) -> None:
        """Load what the message contains; nothing of the client that used the model before may be left in it."""
        key = message.key(THETA)
        vector = message.vectors.get(key, message.payloads.get(key))
        if vector is not None:
            self.model.load(vector)
        for name, network in self.networks.items():
            if message.key(name) in message.vectors:
                network.load(message.vector(name))
        buffers = state.tensors.get(BATCH_NORM) if self.keep_batch_norm else message.vectors.get(BUFFERS)
        if buffers is not None or vector is None or len(vector) < self.model.layout.size:
            self.model.load_buffers(buffers)

    def trained(self, message: Broadcast) -> Tensors:
        """The vectors of a message after training; views of the networks, valid until the next call."""
        key = message.key(THETA)
        vectors = {key: self.model.vector[: len(message.vectors[key])]} if key in message.vectors else {}
        if BUFFERS in message.vectors:
            vectors[BUFFERS] = self.model.buffers
        for name, network in self.networks.items():
            if message.key(name) in message.vectors:
                vectors[message.key(name)] = network.vector
        return vectors

    def _deltas(self, message: Broadcast) -> Tensors:
        """θ_m − θ, and the same for every other network and for statistics that are sent apart from θ."""
        trained = self.trained(message)
        check_vectors(self.method, message, trained)
        total, at, deltas = sum(len(vector) for vector in trained.values()), 0, {}
        if len(self._delta) != total:
            self._delta = torch.empty(total, dtype=self.model.vector.dtype, device=self.model.vector.device)
        for name, vector in trained.items():
            out = self._delta[at : at + len(vector)] if vector.dtype == self._delta.dtype else None
            deltas[name] = torch.sub(vector, message.vectors[name], out=out)
            at += len(vector)
        return deltas


def samples_of(federation: Federation, message: Broadcast, client: int) -> ClientSamples:
    """What a client trains on: the data of the task, or of the round of the stream that the message names."""
    time = message.numbers.get(STREAM_ROUND)
    return federation.client_samples(message.task, client, None if time is None else int(time))


@contextmanager
def _located_errors(context: ClientContext, activity: str) -> Iterator[None]:
    """Add client, task, activity and batch to an exception of the method; input errors already say what is wrong."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, IndexError) and "Target" in str(error):  # torch's cross-entropy
            raise InputError(
                f"model: it has too few outputs for the labels ({error}); the data has {context.num_classes} classes, "
                "and the model needs one output for each"
            ) from None
        batch = f", batch {context.batch}" if context.batch else ""
        place = f"client {context.client}, task {context.broadcast.task}, {activity}{batch}"
        text = " ".join(str(error).split())
        raise ClientError(f"{place}: {type(error).__name__}: {text}") from error
