"""Laws of the training on one client."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedspecial.engine import local
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
