"""Where forgetting sits: how far each layer has moved since an earlier task, and what putting it back restores.

A layer's part of a model is its weights or its BatchNorm statistics. `drift` is the relative distance of a part between
the model that ended an earlier task and a later one, ‖later − earlier‖ / ‖earlier‖. `put_back` is the later model with
some parts as they were: if the earlier task is then predicted better, what was forgotten sits in these parts. Gains of
single parts do not add up, because layers fit each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspecial.core.vector import Kind, Layout, Slot


@dataclass(frozen=True)
class Part:
    """The weights (`kind` "weight") or the statistics ("buffer") of one layer, and where they are in a vector."""

    layer: str
    kind: Kind
    slots: tuple[Slot, ...]

    def of(self, vector: Tensor) -> Tensor:
        return torch.cat([slot.view(vector).flatten() for slot in self.slots])


def parts_of(layout: Layout) -> list[Part]:
    """All parts of a model, in the order of its layers; a layer is the module that a tensor belongs to."""
    found: dict[tuple[str, Kind], list[Slot]] = {}
    for slot in layout.slots:
        found.setdefault((slot.name.rpartition(".")[0], slot.kind), []).append(slot)
    layers = list(dict.fromkeys(layer for layer, _ in found))
    ordered = sorted(found, key=lambda key: (layers.index(key[0]), key[1] == "buffer"))
    return [Part(layer, kind, tuple(found[layer, kind])) for layer, kind in ordered]


def drift(part: Part, earlier: Tensor, later: Tensor) -> float:
    """The relative distance of a part between two models; 0 where both are zero."""
    before, after = (part.of(vector).double() for vector in (earlier, later))
    moved = float((after - before).norm())
    return moved / float(before.norm()) if moved else 0.0


def put_back(parts: Iterable[Part], earlier: Tensor, later: Tensor) -> Tensor:
    """The later model with these parts of the earlier one."""
    mixed = later.clone()
    for part in parts:
        for slot in part.slots:
            slot.view(mixed).copy_(slot.view(earlier))
    return mixed
