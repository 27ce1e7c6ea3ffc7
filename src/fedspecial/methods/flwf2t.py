"""FLwF-2T (Usmanova et al., 2021): learning without forgetting in a federation, with two teachers.

    L = α·CE(f(x), y) + β·KD(f, f_client) + (1 − α − β)·KD(f, f_server)        from the second task on
    KD(f, g) = −mean_x Σ_c softmax(g(x)/τ)_c · log softmax(f(x)/τ)_c           over the classes of the previous task

f: the client's model · f_server: the downloaded θ_i^t · f_client: the client's own model as it was after its last
training in the previous task · α: `alpha_ce` · β: `beta_past` · τ: `temperature`. The server step is FedAvg's.

A client that took no part in the previous task has no such model; it downloads θ_{i−1} once per task. With
``teacher=global`` all clients do. Teachers are frozen and in evaluation mode, so their logits do not change: they are
computed once per task for the client's teacher and once per round for the server's. The first task has no teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from fedspecial.core.batches import map_tensors
from fedspecial.core.messages import Broadcast, ServerState, Update
from fedspecial.core.vector import FlatModel
from fedspecial.methods.base import ClientContext, Method, ServerContext

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Teacher(NamedTuple):
    """A frozen model (its tensors by name) and its logits on the client's samples.

    known: which logits are computed already; on the CPU, since a look at the logits would wait for the device
    """

    weight: float
    tensors: dict[str, Tensor]
    logits: Tensor
    known: np.ndarray


@dataclass(frozen=True)
class FLwF2T(Method):
    """Distil from two teachers: the downloaded model and the client's own model of the previous task.

    L = α·CE(f(x), y) + β·KD(f, f_client) + (1 − α − β)·KD(f, f_server)

    Args:
        alpha_ce: Weight α of the cross-entropy, in [0, 1]; FedAvg at 1 with beta_past=0.
        beta_past: Weight β of the client's own past model, in [0, 1]; alpha_ce + beta_past ≤ 1.
        temperature: Temperature τ of the distillation, > 0.
        teacher: "own": the past model is the client's own; "global": all clients use the previous task's global model.

    Example:
        ``fedspecial.run("digits-shift", method=FLwF2T(alpha_ce=0.5, beta_past=0.25))``

    Reference:
        Usmanova et al., A Distillation-based Approach Integrating Continual Learning and Federated Learning for
        Pervasive Services, 2021.
    """

    name: ClassVar[str] = "flwf2t"
    needs_class_scores: ClassVar[bool] = True
    fedavg_when: ClassVar = {"alpha_ce": 1.0, "beta_past": 0.0}
    # The newest local model equals the working model; it is stored because it will be the next task's teacher.
    memory_excluded: ClassVar = frozenset({"state/model", "state/past_logits"})

    alpha_ce: Annotated[Share, Field(description="weight of the cross-entropy")] = 0.5
    beta_past: Annotated[Share, Field(description="weight of the client's own past model")] = 0.25
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False, description="temperature of the distillation")] = 2.0
    teacher: Annotated[
        Literal["own", "global"], Field(description="the past teacher: the client's own model or the global one")
    ] = "own"

    def __post_init__(self) -> None:
        if self.alpha_ce + self.beta_past > 1 + 1e-9:
            raise ValueError(
                f"alpha_ce={self.alpha_ce:g} and beta_past={self.beta_past:g} sum to more than 1, "
                "so the server's teacher would have a negative weight"
            )

    @property
    def _server_weight(self) -> float:
        return max(0.0, 1 - (self.alpha_ce + self.beta_past))

    @property
    def _keeps_own(self) -> bool:
        return self.beta_past > 0 and self.teacher == "own"

    def begin_task(self, server: ServerState, context: ServerContext) -> None:
        if self.beta_past > 0 and context.task > 1:
            server.models["past"] = server.theta.clone()
            server.tensors["with_past"] = server.tensors.pop("trained", torch.empty(0, dtype=torch.int64))

    def broadcast(self, server: ServerState, client: int, task: int, round: int) -> Broadcast:
        message = super().broadcast(server, client, task, round)
        if "past" in server.models and client not in server.tensors["with_past"]:
            message.payloads["past"] = server.models["past"]
        return message

    def receive(self, server: ServerState, update: Update) -> None:
        """Record which clients trained in this task: they will have a teacher of their own in the next."""
        if self._keeps_own:
            known = server.tensors.get("trained", torch.empty(0, dtype=torch.int64))
            server.tensors["trained"] = torch.tensor(sorted({*known.tolist(), update.client}))

    def begin_round(self, context: ClientContext) -> None:
        if self.beta_past > 0:
            self._renew_past_model(context)
        if context.old_classes == 0:
            return
        state, message, device = context.state, context.broadcast, context.model.vector.device
        teachers = []
        if self._server_weight > 0:
            logits = context.scratch["server_logits"] = _no_logits(context).to(device)
            known = np.zeros(len(logits), dtype=bool)
            teachers.append(Teacher(self._server_weight, _frozen(context, message.theta), logits, known))
        if self.beta_past > 0:
            past = message.payloads["past"] if "past" in message.payloads else state.models["past"]
            known = ~state.tensors["past_logits"][:, 0].isnan().numpy()
            logits = state.tensors["past_logits"] = state.tensors["past_logits"].to(device)
            teachers.append(Teacher(self.beta_past, _frozen(context, past), logits, known))
        context.scratch["teachers"] = teachers

    def _renew_past_model(self, context: ClientContext) -> None:
        """In a client's first round of a task, its newest model becomes its past model."""
        task, state, version = context.broadcast.task, context.state, context.data.version
        if state.numbers.get("task") == task:
            if task > 1 and version and state.numbers.get("samples") != version:  # the logits are of other samples
                state.tensors["past_logits"], state.numbers["samples"] = _no_logits(context), version
            return
        state.numbers["task"] = task
        newest = state.models.pop("model", None)
        state.models.pop("past", None)
        if newest is not None and "past" not in context.broadcast.payloads:
            state.models["past"] = newest
        if task > 1:
            state.tensors["past_logits"] = _no_logits(context)
            if version:
                state.numbers["samples"] = version

    def loss(self, context: ClientContext, x: Tensor, y: Tensor) -> Tensor:
        teachers: Sequence[Teacher] = context.scratch.get("teachers", ())
        if not teachers:
            return super().loss(context, x, y)
        logits = context.model(x)
        total = self.alpha_ce * cross_entropy(logits, y)
        for teacher in teachers:
            target = _teacher_logits(context, teacher, x)
            total = total + teacher.weight * distillation(logits[:, : context.old_classes], target, self.temperature)
        return total

    def end_round(self, context: ClientContext) -> None:
        if self._keeps_own:
            context.state.models["model"] = context.model.vector


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KD(f, g) of logits, both softened by τ; its gradient vanishes where they agree."""
    return cross_entropy(student / temperature, softmax(teacher / temperature, 1))


def _no_logits(context: ClientContext) -> Tensor:
    return torch.full((len(context.data), context.old_classes), torch.nan)


def _frozen(context: ClientContext, vector: Tensor) -> dict[str, Tensor]:
    """A model's tensors by name, with the downloaded BatchNorm statistics where its vector has none of its own."""
    layout = context.model.layout
    vector = vector.to(context.model.vector.device)
    whole = vector if len(vector) == layout.size else torch.cat([vector, context.model.buffers])
    return dict(layout.named(whole))


def _teacher_logits(context: ClientContext, teacher: Teacher, x: Tensor) -> Tensor:
    """The teacher's logits on the current batch; computed only for samples that it has not seen yet."""
    where = context.positions.numpy()
    new = np.flatnonzero(~teacher.known[where])
    if len(new):
        rows = torch.from_numpy(new)
        unseen = map_tensors(lambda part: part[rows.to(part.device)], x)  # x may be a dict or a tuple
        logits = _logits(context.model, teacher.tensors, unseen)
        teacher.logits[torch.from_numpy(where[new])] = logits[:, : context.old_classes].to(teacher.logits.dtype)
        teacher.known[where] = True
    return teacher.logits[context.positions]


@torch.no_grad()
def _logits(model: FlatModel, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """The model's output in evaluation mode with other weights; its own weights are not changed."""
    model.module.eval()
    logits = model.scores_with(tensors, x)
    model.train()
    return logits
