"""Training on one client: the one local loop that every method shares (lines 8 to 11 of Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.messages import Numbers, Update
from fedspecial.methods.base import ClientContext, Method, ProximalTerm


@dataclass(frozen=True)
class LocalTraining:
    """How clients train. Exactly one of `epochs` (may be a fraction) and `steps` is given."""

    epochs: float | None
    steps: int | None
    batch_size: int
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    watch_gradients: bool = False

    @property
    def adaptive(self) -> bool:
        return self.optimizer != "sgd"


def train(method: Method, context: ClientContext, plan: LocalTraining, order: np.random.Generator) -> Update:
    """E epochs of mini-batch descent from the downloaded model; returns how each vector changed.

    The delta is left for the caller to take from `context.model`, so that no second copy of the model is made here.
    """
    model, rows = context.model, context.data.rows
    model.module.train()
    method.begin_round(context)
    proximal_term = method.proximal_term(context)
    step = _optimizer(plan, model.trainable, model.weights)
    total_loss, steps, largest = 0.0, 0, 0.0
    smallest = 2 if model.has_batch_norm else 1
    for batch, context.positions, ends_epoch in _batches(rows, plan, order, smallest):  # line 8
        context.batch += 1
        x, y = context.data.batch(batch)
        loss = method.loss(context, x, y)
        gradients = _gradients(loss, model.trainable)  # line 9
        if plan.watch_gradients:
            largest = max(largest, torch.stack(torch._foreach_norm(gradients)).norm().item())
        step(gradients, context.lr, proximal_term)  # line 10
        del gradients  # so that the next ones can reuse the memory
        method.after_step(context)
        if ends_epoch:
            method.after_epoch(context)
        total_loss += loss.item()
        steps += 1
    method.end_round(context)
    mean_loss = total_loss / steps if steps else 0.0
    numbers: Numbers = {"max_grad": largest} if plan.watch_gradients else {}
    return Update(context.client, {}, steps, len(rows), mean_loss, numbers | context.numbers, context.uploads)


def _batches(
    rows: np.ndarray, plan: LocalTraining, order: np.random.Generator, smallest: int
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Shuffled passes over the rows, until the planned number of steps is done: rows, their positions, epoch's end.

    A last batch of one row is left out where the model has BatchNorm, which cannot normalise a single sample.
    """
    size = plan.batch_size
    per_epoch = sum(min(size, len(rows) - at) >= smallest for at in range(0, len(rows), size))
    if not per_epoch:
        return
    left = plan.steps if plan.steps is not None else math.ceil(per_epoch * (plan.epochs or 0) - 1e-9)
    while left > 0:
        count = min(left, per_epoch)
        positions = order.permutation(len(rows))[: count * size]
        parts = (torch.split(torch.from_numpy(part), size) for part in (rows[positions], positions))
        for number, (batch, where) in enumerate(zip(*parts, strict=True), start=1):
            yield batch, where, number == per_epoch
        left -= count


def _gradients(loss: Tensor, parameters: Sequence[torch.nn.Parameter]) -> list[Tensor]:
    """∇ of the loss, zero for unused weights. A tenth faster than `torch.autograd.grad` on tiny models."""
    _backward(loss)
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return found


_ONE = torch.ones(())


def _backward(loss: Tensor) -> None:
    """`loss.backward()`. Its checks in Python take more than a third of its time on a tiny model, so an ordinary loss
    goes to the autograd engine directly, with the arguments that `torch.autograd.backward` passes on."""
    if type(loss) is Tensor and loss.is_cpu and loss.dtype == torch.float32 and loss.dim() == 0 and loss.requires_grad:
        torch.autograd.Variable._execution_engine.run_backward(
            (loss,), (_ONE,), False, False, (), allow_unreachable=True, accumulate_grad=True
        )
    else:
        loss.backward()  # type: ignore[no-untyped-call]


Step = Callable[[Sequence[Tensor], float, ProximalTerm | None], None]


def _optimizer(plan: LocalTraining, parameters: list[torch.nn.Parameter], weights: Tensor) -> Step:
    """A new optimiser: clients keep none between rounds."""
    if plan.optimizer == "adamw":
        return _adamw(plan, parameters, weights)
    momentum: list[Tensor] = []
    # Detached views of the same memory, so that a step need not enter and leave `no_grad`.
    values = [parameter.detach() for parameter in parameters]

    def sgd(gradients: Sequence[Tensor], lr: float, proximal_term: ProximalTerm | None) -> None:
        if proximal_term is not None and not plan.momentum:
            # θ − γ(g + w(θ − c)) on the complete model: one pass over memory instead of one per tensor.
            weights.lerp_(proximal_term.center, lr * proximal_term.weight)
        elif proximal_term is not None:
            _add_proximal_gradient(gradients, values, proximal_term, weights)
        if plan.weight_decay:
            for gradient, value in zip(gradients, values, strict=True):
                gradient.add_(value, alpha=plan.weight_decay)
        if plan.momentum:
            if not momentum:
                momentum.extend(torch.zeros_like(gradient) for gradient in gradients)
            for velocity, gradient in zip(momentum, gradients, strict=True):
                velocity.mul_(plan.momentum).add_(gradient)
            gradients = momentum
        for value, gradient in zip(values, gradients, strict=True):
            value.add_(gradient, alpha=-lr)

    return sgd


def _adamw(plan: LocalTraining, parameters: list[torch.nn.Parameter], weights: Tensor) -> Step:
    optimizer = torch.optim.AdamW(parameters, weight_decay=plan.weight_decay)

    def adamw(gradients: Sequence[Tensor], lr: float, proximal_term: ProximalTerm | None) -> None:
        optimizer.param_groups[0]["lr"] = lr
        if proximal_term is not None:
            _add_proximal_gradient(gradients, parameters, proximal_term, weights)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        optimizer.zero_grad()

    return adamw


@torch.no_grad()
def _add_proximal_gradient(
    gradients: Sequence[Tensor], parameters: Sequence[Tensor], proximal_term: ProximalTerm, weights: Tensor
) -> None:
    """Add the gradient w(θ − c) of the proximal term to each gradient, as part of the loss: no decoupled decay."""
    start, width = weights.data_ptr(), weights.element_size()
    for gradient, parameter in zip(gradients, parameters, strict=True):
        offset = (parameter.data_ptr() - start) // width
        center = proximal_term.center.as_strided(
            parameter.shape, parameter.stride(), proximal_term.center.storage_offset() + offset
        )
        gradient.add_(parameter - center, alpha=proximal_term.weight)
