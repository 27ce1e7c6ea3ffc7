"""Max pooling without gradients: the values of torch's own pooling, without its search for the places of the maxima."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedspecial.models import build
from fedspecial.models.pooling import HalvingMaxPool

TORCHS_OWN = {2: nn.MaxPool2d(2, ceil_mode=True), 3: nn.MaxPool2d(3, stride=2, padding=1)}
SIZES = ((16, 16), (2, 2), (4, 10), (7, 7), (6, 5))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the names of all operations that are executed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(function))
        return function(*args, **(kwargs or {}))


def with_ties(size: tuple[int, int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Small integers, so that windows have several maxima, and infinite and undefined values among them."""
    x = torch.randint(-2, 3, (3, 4, *size), generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0, 0, 0], x[1, 1, -1, -1], x[2, 2] = float("nan"), float("inf"), float("-inf")
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("window", [2, 3])
def test_values_are_those_of_torch(window: int, size: tuple[int, int], dtype: torch.dtype) -> None:
    x = with_ties(size, dtype)
    for given in (x, x.contiguous(memory_format=torch.channels_last), x[0]):
        expected, found = TORCHS_OWN[window](given), HalvingMaxPool(window)(given)
        assert torch.equal(expected.isnan(), found.isnan())
        assert torch.equal(expected.nan_to_num(9.0), found.nan_to_num(9.0))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("window", [2, 3])
def test_gradients_are_those_of_torch(window: int, size: tuple[int, int]) -> None:
    x = with_ties(size).requires_grad_()
    outputs = TORCHS_OWN[window](x), HalvingMaxPool(window)(x)
    slopes = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(1))
    expected, found = (torch.autograd.grad(output, x, slopes)[0] for output in outputs)
    assert torch.equal(expected, found)


@pytest.mark.parametrize("batch", [2, 10, 32])
def test_a_step_of_the_small_network_is_that_with_torchs_pooling(batch: int) -> None:
    model = build("cnn", input_shape=(3, 32, 32), num_classes=10, width=4)
    x = torch.randint(0, 3, (batch, 3, 32, 32), generator=torch.Generator().manual_seed(2)).float()
    gradients = []
    for pool in (TORCHS_OWN[2], HalvingMaxPool(2)):
        model.halve = pool
        gradients.append(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_predicting_does_not_search_for_the_places_of_maxima(name: str) -> None:
    model = build(name, input_shape=(3, 32, 32), num_classes=10, width=4)
    with Operations() as trained:
        model(torch.zeros(2, 3, 32, 32)).sum().backward()
    with Operations() as predicted, torch.inference_mode():
        model.eval()(torch.zeros(2, 3, 32, 32))
    assert "aten.max_pool2d_with_indices.default" in trained.names
    assert not any("max_pool2d" in operation for operation in predicted.names)
