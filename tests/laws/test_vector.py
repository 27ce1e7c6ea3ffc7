"""A model is one vector: laws of the flat model, its layout, messages and the mean of updates."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedspecial import InputError
from fedspecial.core.messages import _CODES, Broadcast, broadcast_size, pack, packed_size, unpack
from fedspecial.core.vector import FlatModel, layout_of
from fedspecial.engine.aggregation.mean import RunningMean, norm, norm_of, refusal
from fedspecial.models import build


class Odd(nn.Module):
    """Tied weights, an integer counter, a -inf mask, a non-persistent buffer, a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("scratch", torch.ones(3), persistent=False)
        self.register_buffer("scale", torch.full((2,), 5.0))


def test_the_modules_tensors_are_views_of_the_vector() -> None:
    model = FlatModel(build("cnn", input_shape=(3, 16, 16), num_classes=3))
    model.vector.fill_(0.5)
    assert all(bool((p == 0.5).all()) for p in model.module.parameters())
    with torch.no_grad():
        next(model.module.parameters()).fill_(2.0)
    assert bool((model.vector[: next(model.module.parameters()).numel()] == 2.0).all())


def test_flattening_does_not_change_the_outputs() -> None:
    module = build("resnet18", input_shape=(3, 32, 32), num_classes=10, width=8).eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = module(x)
    FlatModel(module)
    assert torch.equal(module(x), before)


def test_weights_come_first_and_counters_and_masks_are_left_out() -> None:
    model = FlatModel(Odd())
    names = [slot.name for slot in model.layout.slots]
    weights, buffers = {"first.weight", "norm.weight", "norm.bias"}, {"norm.running_mean", "norm.running_var"}
    assert set(names) == weights | buffers | {"scale"}
    kinds = [slot.kind for slot in model.layout.slots]
    assert kinds == ["weight"] * 3 + ["buffer"] * 3
    assert model.layout.num_weights == 16 + 4 + 4
    assert model.module.second.weight is model.module.first.weight
    assert len(model.trainable) == 3


def test_loading_resets_integer_counters() -> None:
    model = FlatModel(Odd())
    start = model.vector.clone()
    model.module.train()
    model.module.norm(torch.randn(8, 4))
    assert int(model.module.norm.num_batches_tracked) == 1
    model.load(start)
    assert int(model.module.norm.num_batches_tracked) == 0
    assert torch.equal(model.vector, start)


def test_a_weight_that_is_no_longer_a_view_is_detected() -> None:
    model = FlatModel(nn.Linear(2, 2))
    model.check_views()
    model.module.weight.data = torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match="'weight' is no longer a view"):
        model.check_views()


def test_a_replaced_layer_is_detected() -> None:
    model = FlatModel(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))))
    model.check_views()
    model.module[1] = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match=r"'1\.0\.weight' is no longer a view"):
        model.check_views()
    model.module[1] = nn.Identity()
    with pytest.raises(RuntimeError, match=r"'1\.0\.weight' is no longer a view"):
        model.check_views()


def test_complex_weights_and_models_without_weights_are_refused() -> None:
    with pytest.raises(InputError, match=r"'weight' is torch\.complex64; trainable weights must be floating-point"):
        layout_of(nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.raises(InputError, match="no weights"):
        layout_of(nn.ReLU())


def test_the_digest_depends_on_values_and_on_names() -> None:
    a, b = FlatModel(nn.Linear(2, 3)), FlatModel(nn.Sequential(nn.Linear(2, 3)))
    b.vector.copy_(a.vector)
    assert a.layout.digest(a.vector) != b.layout.digest(b.vector)
    before = a.layout.digest(a.vector)
    a.vector[0] += 1e-3
    assert a.layout.digest(a.vector) != before


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
kinds = st.sampled_from(list(_CODES))
zeros = st.builds(lambda shape, kind: torch.zeros(shape, dtype=kind), shapes, kinds)
tensors = st.dictionaries(st.text('abc/é"', min_size=1, max_size=5), zeros, max_size=4)
numbers = st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.integers(-9, 9) | st.floats(-1, 1), max_size=3)


@given(tensors, numbers)
def test_the_size_of_a_message_is_that_of_its_bytes(t: dict[str, torch.Tensor], n: dict[str, float]) -> None:
    assert packed_size(t, n) == len(pack(t, n))


@given(tensors, numbers)
def test_unpacking_a_packed_message_gives_it_back(t: dict[str, torch.Tensor], n: dict[str, float]) -> None:
    tensors, numbers = unpack(pack(t, n))
    assert numbers == n
    assert tensors.keys() == t.keys()
    assert all(torch.equal(tensors[k], t[k]) and tensors[k].dtype == t[k].dtype for k in t)


def test_a_payload_is_counted_only_for_clients_that_do_not_have_it() -> None:
    message = Broadcast(1, 0, {"theta": torch.zeros(10)}, {"anchor": torch.zeros(10)})
    without = Broadcast(1, 0, {"theta": torch.zeros(10)})
    assert broadcast_size(message, present=frozenset({"anchor"})) == broadcast_size(without)
    assert broadcast_size(message) > broadcast_size(without) + 40


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8), st.randoms())
def test_the_mean_does_not_depend_on_the_order_of_updates(values: list[float], random: object) -> None:
    def mean(order: list[float]) -> torch.Tensor:
        running = RunningMean()
        for value in order:
            running.add({"theta": torch.full((3,), value)})
        return running.result()["theta"]

    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert torch.equal(mean(values), mean(shuffled))


@pytest.mark.parametrize(
    ("deltas", "reason"),
    [
        ({"theta": torch.tensor([1.0, math.nan])}, "'theta' contains NaN or Inf"),
        ({"theta": torch.tensor([1.0, math.inf])}, "'theta' contains NaN or Inf"),
        ({"theta": torch.zeros(3)}, "'theta' has 3 values, expected 2"),
        ({"gamma": torch.zeros(2)}, r"it carries ['gamma'], expected ['theta']"),
        ({"theta": torch.tensor([3e38, 3e38])}, None),
        ({"theta": torch.zeros(2)}, None),
    ],
)
def test_an_update_that_cannot_be_used_is_refused_with_its_reason(
    deltas: dict[str, torch.Tensor], reason: str | None
) -> None:
    assert refusal(deltas, {"theta": torch.zeros(2)}) == reason


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 5000, 3_000_001])
def test_the_norm_of_a_vector_of_any_length_is_exact_to_a_millionth(size: int) -> None:
    """0.3·√n for n equal values. The norm of torch is off by 0.5 % at three million: it adds them one after another."""
    assert norm(torch.full((size,), 0.3)) == pytest.approx(0.3 * size**0.5, rel=1e-6)


def test_the_norm_of_several_tensors_is_that_of_all_their_values() -> None:
    """3-4-12 and zeros: √(9 + 16 + 144) = 13."""
    tensors = [torch.tensor([[3.0, 0.0], [0.0, 4.0]]).T, torch.tensor(12.0), torch.zeros(2000)]
    assert norm_of(tensors).item() == pytest.approx(13.0, rel=1e-6)


def test_a_norm_beyond_float32_is_computed_in_float64() -> None:
    assert norm(torch.full((4000,), 1e37)) == pytest.approx(1e37 * 4000**0.5, rel=1e-6)
    assert norm(torch.tensor([1.0, float("inf")])) == float("inf")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_vector_is_on_the_device_of_the_module(device: str) -> None:
    assert FlatModel(nn.Linear(2, 3, device=device)).vector.device.type == device
