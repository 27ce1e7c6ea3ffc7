"""Where forgetting sits: drift of a layer, and models with some layers put back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedspecial.core.vector import FlatModel
from fedspecial.metrics.layers import drift, parts_of, put_back


def tiny() -> FlatModel:
    return FlatModel(nn.Sequential(nn.Linear(1, 2, bias=False), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 1)))


def test_the_parts_are_the_weights_and_the_statistics_of_each_layer() -> None:
    layout = tiny().layout
    parts = parts_of(layout)
    assert [(part.layer, part.kind) for part in parts] == [("0", "weight"), ("2", "weight"), ("1", "buffer")]
    assert sum(slot.numel for part in parts for slot in part.slots) == layout.size


def test_drift_by_hand() -> None:
    """(3, 4) → (3, 0): 4/5 of its length."""
    model = tiny()
    earlier, later = model.vector.clone(), model.vector.clone()
    weights, last, statistics = parts_of(model.layout)
    earlier[:2], later[:2] = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0])
    assert drift(weights, earlier, later) == pytest.approx(0.8)
    assert drift(last, earlier, later) == drift(statistics, earlier, later) == 0.0


def test_putting_all_parts_back_is_the_earlier_model_and_none_the_later_one() -> None:
    model = tiny()
    earlier, later = torch.rand(len(model.vector)), torch.rand(len(model.vector))
    parts = parts_of(model.layout)
    assert torch.equal(put_back(parts, earlier, later), earlier)
    assert torch.equal(put_back([], earlier, later), later)


def test_putting_one_part_back_changes_nothing_else() -> None:
    model = tiny()
    earlier, later = torch.zeros(len(model.vector)), torch.ones(len(model.vector))
    for part in parts_of(model.layout):
        mixed = put_back([part], earlier, later)
        assert not part.of(mixed).any()
        assert int(mixed.sum()) == len(mixed) - sum(slot.numel for slot in part.slots)
