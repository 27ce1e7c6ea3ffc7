"""Training on one client: the one local loop that every method shares (lines 8 to 11 of Algorithm 1)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.messages import Numbers, Update
from fedspecial.core.vector import FlatModel
from fedspecial.engine.aggregation.mean import norm_of
from fedspecial.engine.detection import FIRST_LOSS
from fedspecial.methods.base import ClientContext, Method, ProximalTerm

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class LocalTraining:
    """How clients train. Exactly one of `epochs` (may be a fraction) and `steps` is given.

    min_batch: with BatchNorm, a last batch of fewer samples is left out
    precision: of the loss and its gradient where autocast allows it; weights and optimiser are not affected
    send_first_loss: the loss of the first batch, under the downloaded model, is a number of the update
    """

    epochs: float | None
    steps: int | None
    batch_size: int
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    watch_gradients: bool = False
    precision: Precision = "float32"
    send_first_loss: bool = False
    min_batch: int = 2

    @property
    def adaptive(self) -> bool:
        return self.optimizer != "sgd"


def train(method: Method, context: ClientContext, plan: LocalTraining, order: np.random.Generator) -> Update:
    """E epochs of mini-batch descent from the downloaded model, in place.

    The update that is returned has no deltas yet: the caller takes them from `context.model`, so that no second copy of
    the model is made here. No step reads a value from the device: that would wait for all work that is queued there.
    """
    model, rows = context.model, context.data.rows
    model.train()
    method.begin_round(context)
    proximal_term = method.proximal_term(context)
    step = _optimizer(plan, model.values, model.weights)
    loss_of = _with_precision(method.loss, plan.precision, context.data.device)
    losses: list[Tensor] = []
    norms: list[Tensor] = []
    has_copies = model.has_copies
    batches = _batches(rows, plan, order, _smallest_batch(model, plan, len(rows)), context.data.rows_device)
    for batch, context.positions, ends_pass in batches:  # line 8
        context.batch += 1
        x, y = context.data.batch(batch)
        loss = loss_of(context, x, y)
        gradients = _gradients(loss, model.trainable)  # line 9
        if has_copies:
            gradients = [gradient.to(model.vector.dtype) for gradient in gradients]
        if plan.watch_gradients:
            norms.append(norm_of(gradients))
        step(gradients, context.lr, proximal_term)  # line 10
        del gradients  # so that the next ones can reuse the memory
        if has_copies:
            model.write_copies()
        method.after_step(context)
        if ends_pass:
            method.after_epoch(context)
        if has_copies:
            model.write_copies()
        losses.append(loss.detach())
    method.end_round(context)
    # One addition after another: `sum` compensates rounding errors in newer versions of Python only.
    values = _values(losses)
    mean_loss = reduce(operator.add, values, 0.0) / max(1, len(losses))
    numbers: Numbers = {"max_grad": reduce(max, _values(norms), 0.0)} if plan.watch_gradients else {}
    if plan.send_first_loss and values:
        numbers[FIRST_LOSS] = values[0]
    return Update(context.client, {}, len(losses), len(rows), mean_loss, numbers | context.numbers, context.uploads)


def _values(scalars: list[Tensor]) -> list[float]:
    """Their values, read from the device at once."""
    return torch.stack(scalars).flatten().tolist() if scalars else []


Loss = Callable[[ClientContext, Tensor, Tensor], Tensor]


def _with_precision(loss: Loss, precision: Precision, device: torch.device) -> Loss:
    """The loss in mixed precision: autocast chooses the operations that are computed in `precision`."""
    if precision == "float32":
        return loss

    def mixed(context: ClientContext, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device.type, getattr(torch, precision)):
            return loss(context, x, y)

    return mixed


def _smallest_batch(model: FlatModel, plan: LocalTraining, samples: int) -> int:
    """How many samples a batch needs. BatchNorm cannot normalise one, and few make some gradients very large."""
    return max(2, min(plan.min_batch, plan.batch_size, samples)) if model.has_batch_norm else 1


def _batches(
    rows: np.ndarray, plan: LocalTraining, order: np.random.Generator, smallest: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Shuffled passes over the rows until the planned number of steps is done.

    Each batch is its rows, their positions among `rows`, and whether a pass ends with it. The rows are moved to the
    device where the data is, those of an epoch at once; the positions stay on the CPU.

    The last pass may be incomplete, by `steps` or by a fraction of an epoch; it ends with the round. A last
    batch of fewer than `smallest` rows is left out.
    """
    size = plan.batch_size
    per_epoch = sum(min(size, len(rows) - at) >= smallest for at in range(0, len(rows), size))
    if not per_epoch:
        return
    left = plan.steps if plan.steps is not None else math.ceil(per_epoch * (plan.epochs or 0) - 1e-9)
    while left > 0:
        count = min(left, per_epoch)
        positions = order.permutation(len(rows))[: count * size]
        chosen = torch.from_numpy(rows[positions])
        parts = (chosen if device.type == "cpu" else chosen.to(device)), torch.from_numpy(positions)
        for number, (batch, where) in enumerate(
            zip(*(torch.split(part, size) for part in parts), strict=True), start=1
        ):
            yield batch, where, number == count
        left -= count


def _gradients(loss: Tensor, parameters: Sequence[torch.nn.Parameter]) -> list[Tensor]:
    """∇ of the loss, zero for unused weights. A tenth faster than `torch.autograd.grad` on tiny models."""
    _backward(loss)
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return found


# Not of the type and device that a program chose as torch's defaults before this module was imported.
_ONE = torch.ones((), dtype=torch.float32, device="cpu")
# Not a public function: where a version of torch lacks it, `loss.backward()` is used.
_RUN_BACKWARD = getattr(getattr(torch.autograd.Variable, "_execution_engine", None), "run_backward", None)


def _backward(loss: Tensor) -> None:
    """`loss.backward()`. Its checks in Python take more than a third of its time on a tiny model, so an ordinary loss
    goes to the autograd engine directly, with the arguments that `torch.autograd.backward` passes on."""
    ordinary = type(loss) is Tensor and loss.is_cpu and loss.dtype == torch.float32 and loss.dim() == 0
    if ordinary and loss.requires_grad and _RUN_BACKWARD is not None:
        _RUN_BACKWARD((loss,), (_ONE,), False, False, (), allow_unreachable=True, accumulate_grad=True)
    else:
        loss.backward()  # type: ignore[no-untyped-call]


Step = Callable[[Sequence[Tensor], float, ProximalTerm | None], None]


def _optimizer(plan: LocalTraining, parameters: Sequence[Tensor], weights: Tensor) -> Step:
    """A new optimiser: clients keep none between rounds."""
    if plan.optimizer == "adamw":
        return _adamw(plan, parameters, weights)
    momentum: list[Tensor] = []
    # Detached views of the same memory, so that a step need not enter and leave `no_grad`.
    values = [parameter.detach() for parameter in parameters]

    def sgd(gradients: Sequence[Tensor], lr: float, proximal_term: ProximalTerm | None) -> None:
        if proximal_term is not None and plan.momentum:
            _add_proximal_gradient(gradients, values, proximal_term, weights)
        if plan.weight_decay:
            for gradient, value in zip(gradients, values, strict=True):
                gradient.add_(value, alpha=plan.weight_decay)
        if proximal_term is not None and not plan.momentum:
            # θ − γ(g + w(θ − c)) on the complete model: one pass over memory instead of one per tensor. It changes θ,
            # so the weight decay is added before it.
            weights.lerp_(proximal_term.center, lr * proximal_term.weight)
        if plan.momentum:
            if not momentum:
                momentum.extend(torch.zeros_like(gradient) for gradient in gradients)
            for velocity, gradient in zip(momentum, gradients, strict=True):
                velocity.mul_(plan.momentum).add_(gradient)
            gradients = momentum
        for value, gradient in zip(values, gradients, strict=True):
            value.add_(gradient, alpha=-lr)

    return sgd


_BETAS, _EPSILON = (0.9, 0.999), 1e-8


def _adamw(plan: LocalTraining, parameters: Sequence[Tensor], weights: Tensor) -> Step:
    """m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²,  θ ← (1−γ·decay)θ − γ·(m/(1−β₁ᵗ)) / (√v/√(1−β₂ᵗ) + ε)

    Equal to `torch.optim.AdamW` bit for bit. Torch's own counts its steps in one tensor per parameter, which it reads
    in every step.
    """
    values = [parameter.detach() for parameter in parameters]
    means, squares = ([torch.zeros_like(value) for value in values] for _ in range(2))
    (first, second), steps = _BETAS, 0

    def adamw(gradients: Sequence[Tensor], lr: float, proximal_term: ProximalTerm | None) -> None:
        nonlocal steps
        steps += 1
        if proximal_term is not None:
            _add_proximal_gradient(gradients, values, proximal_term, weights)
        step_size, root = lr / (1 - first**steps), (1 - second**steps) ** 0.5
        for value, gradient, mean, square in zip(values, gradients, means, squares, strict=True):
            if plan.weight_decay:
                value.mul_(1 - lr * plan.weight_decay)
            mean.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            value.addcdiv_(mean, (square.sqrt() / root).add_(_EPSILON), value=-step_size)

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
