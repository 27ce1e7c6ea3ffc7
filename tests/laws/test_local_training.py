"""Laws of the training on one client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedspecial.engine.clients import local
from fedspecial.engine.clients.local import LocalTraining
from fedspecial.methods.base import ProximalTerm
from fedspecial.models import build


class MarkedTensor(Tensor):
    """A tensor of a user's own class."""


def ordinary(scores: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(scores, y)


def in_float64(scores: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(scores.double(), y)


def with_one_entry(scores: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(scores, y).view(1)


def of_another_class(scores: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(scores, y).as_subclass(MarkedTensor)


@pytest.mark.parametrize("kind", [ordinary, in_float64, with_one_entry, of_another_class])
@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
def test_gradients_are_those_of_torch_bit_for_bit(kind, model: str) -> None:
    module = build(model, input_shape=(3, 32, 32), num_classes=4)
    x, y = torch.randn(6, 3, 32, 32), torch.arange(6) % 4
    parameters = list(module.parameters())
    kind(module(x), y).backward()
    expected = [parameter.grad.clone() for parameter in parameters]
    module.zero_grad(set_to_none=True)
    found = local._gradients(kind(module(x), y), parameters)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(parameter.grad is None for parameter in parameters)


def test_an_unused_weight_has_a_zero_gradient() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    gradients = local._gradients((used**2).sum(), [used, unused])
    assert [gradient.tolist() for gradient in gradients] == [[2.0, 2.0], [0.0, 0.0, 0.0]]


def test_gradients_may_be_changed_where_the_loss_is_a_weight() -> None:
    weight = nn.Parameter(torch.tensor(3.0))
    for _ in range(2):
        (gradient,) = local._gradients(weight * 1, [weight])
        assert gradient.item() == 1.0
        gradient.add_(5.0)
    (gradient,) = local._gradients(weight, [weight])
    gradient.add_(5.0)
    assert local._gradients(weight, [weight])[0].item() == 1.0


@pytest.mark.parametrize("loss", [torch.ones(3, requires_grad=True) * 2, torch.tensor(1.0)])
def test_a_loss_without_a_gradient_is_an_error_of_torch(loss: Tensor) -> None:
    with pytest.raises(RuntimeError, match="grad"):
        local._gradients(loss, [])


LR, CENTER_WEIGHT, STEPS = 0.1, 0.5, 6


def two_tensors(start: Tensor) -> tuple[Tensor, list[nn.Parameter]]:
    """A vector of weights and the parameters that are views of it: a matrix and a vector, as in `FlatModel`."""
    vector = start.clone()
    return vector, [nn.Parameter(vector[:6].view(2, 3)), nn.Parameter(vector[6:])]


def smooth_loss(parameters: list[nn.Parameter], x: Tensor) -> Tensor:
    matrix, bias = parameters
    return torch.logsumexp(matrix @ x + bias, dim=0)


@pytest.mark.parametrize("proximal", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adamw", 0.0)])
def test_a_step_is_that_of_torch_optim(optimizer: str, momentum: float, weight_decay: float, proximal: bool) -> None:
    """torch's own optimiser on the loss plus (w/2)·‖θ − c‖², from the same start, compared after every step.

    In float64, so that rounding (below 10⁻¹⁴ in six steps on numbers of size one) and errors of formulas are far apart:
    a decay that acts on weights that the proximal term has moved already differs by γ²·w·wd·|θ − c| ≈ 10⁻³. AdamW
    divides by a root of squared gradients, which loses a few more digits.
    """
    torch.manual_seed(0)
    start, center = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    inputs = torch.randn(STEPS, 3, dtype=torch.float64)
    plan = LocalTraining(
        epochs=1, steps=None, batch_size=1, optimizer=optimizer, momentum=momentum, weight_decay=weight_decay
    )
    vector, parameters = two_tensors(start)
    step = local._optimizer(plan, parameters, vector)
    expected, theirs = two_tensors(start)
    reference = (
        torch.optim.AdamW(theirs, lr=LR, weight_decay=weight_decay)
        if optimizer == "adamw"
        else torch.optim.SGD(theirs, lr=LR, momentum=momentum, weight_decay=weight_decay)
    )
    term = ProximalTerm(center, CENTER_WEIGHT) if proximal else None
    for x in inputs:
        step(local._gradients(smooth_loss(parameters, x), parameters), LR, term)
        loss = smooth_loss(theirs, x)
        if proximal:
            flat = torch.cat([parameter.flatten() for parameter in theirs])
            loss = loss + CENTER_WEIGHT / 2 * (flat - center).square().sum()
        reference.zero_grad()
        loss.backward()
        reference.step()
        assert torch.allclose(vector, expected, rtol=0, atol=1e-12)
        assert not torch.equal(vector, start)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_adamw_is_that_of_torch_bit_for_bit(weight_decay: float) -> None:
    torch.manual_seed(0)
    start, inputs = torch.randn(8), torch.randn(STEPS, 3)
    plan = LocalTraining(epochs=1, steps=None, batch_size=1, optimizer="adamw", weight_decay=weight_decay)
    vector, parameters = two_tensors(start)
    step = local._optimizer(plan, parameters, vector)
    expected, theirs = two_tensors(start)
    reference = torch.optim.AdamW(theirs, lr=LR, weight_decay=weight_decay, foreach=False)
    for x in inputs:
        step(local._gradients(smooth_loss(parameters, x), parameters), LR, None)
        reference.zero_grad()
        smooth_loss(theirs, x).backward()
        reference.step()
        assert torch.equal(vector, expected)


def test_one_step_with_decay_and_proximal_term_by_hand() -> None:
    """θ = 2, g = 3, c = 1, γ = 1/2, weight decay 1/4, w = 1/2: 2 − ½(3 + ¼·2 + ½·(2 − 1)) = 0."""
    plan = LocalTraining(epochs=1, steps=None, batch_size=1, weight_decay=0.25)
    vector = torch.tensor([2.0])
    step = local._optimizer(plan, [nn.Parameter(vector[:1])], vector)
    step([torch.tensor([3.0])], 0.5, ProximalTerm(torch.tensor([1.0]), 0.5))
    assert vector.item() == 0.0


@pytest.mark.parametrize(
    ("epochs", "steps", "ends"),
    [
        (2, None, [0, 0, 1, 0, 0, 1]),
        (1.5, None, [0, 0, 1, 0, 1]),  # half of three batches is two: the round ends within the second epoch
        (None, 2, [0, 1]),
        (None, 4, [0, 0, 1, 1]),
    ],
)
def test_a_pass_ends_with_the_epoch_or_with_the_round(epochs: float | None, steps: int | None, ends: list[int]) -> None:
    plan = LocalTraining(epochs=epochs, steps=steps, batch_size=4)
    batches = local._batches(np.arange(10), plan, np.random.default_rng(0), 1, torch.device("cpu"))
    assert [int(end) for _, _, end in batches] == ends
