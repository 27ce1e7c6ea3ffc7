"""A model is one vector.

All float32 weights and buffers of a module are stored in one contiguous tensor; the module's own tensors are views
of it. Download, delta, mean, blend, norm and checkpoint are then one operation on one tensor each.
Weights come first, buffers after them, so "weights only" is a prefix. Integer counters, non-persistent and
non-finite buffers (such as -inf masks) stay outside and are never averaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from fedspecial.errors import InputError

Kind = Literal["weight", "buffer"]


@dataclass(frozen=True)
class Slot:
    """The position of one named tensor in the vector."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    offset: int

    @property
    def numel(self) -> int:
        return int(torch.Size(self.shape).numel())

    def view(self, vector: Tensor) -> Tensor:
        return vector[self.offset : self.offset + self.numel].view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names, shapes, kinds and offsets of everything in a model's vector."""

    slots: tuple[Slot, ...]

    @cached_property
    def size(self) -> int:
        return sum(slot.numel for slot in self.slots)

    @cached_property
    def num_weights(self) -> int:
        return sum(slot.numel for slot in self.slots if slot.kind == "weight")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of names, shapes and kinds: two sites may exchange vectors only if theirs agree."""
        table = [[slot.name, list(slot.shape), slot.kind] for slot in self.slots]
        return hashlib.sha256(json.dumps(table).encode()).hexdigest()

    def named(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        for slot in self.slots:
            yield slot.name, slot.view(vector)

    def digest(self, vector: Tensor) -> str:
        """SHA-256 of the model: its layout and its float32 bytes."""
        sha = hashlib.sha256(self.fingerprint.encode())
        sha.update(raw_bytes(vector))
        return sha.hexdigest()


class FlatModel:
    """A module whose weights and float buffers are views of `vector`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layout = layout_of(module)
        first = next(iter(module.parameters()), None)
        device = first.device if first is not None else torch.device("cpu")
        self.vector = torch.empty(self.layout.size, device=device)
        self._views = [slot.view(self.vector) for slot in self.layout.slots]
        self._paths = [slot.name.split(".") for slot in self.layout.slots]
        for slot, view in zip(self.layout.slots, self._views, strict=True):
            owner, leaf = _owner(module, slot.name)
            tensor = getattr(owner, leaf)
            view.copy_(tensor.detach())
            if slot.kind == "weight":
                tensor.data = view
            else:
                owner._buffers[leaf] = view
        self.trainable = [p for p in module.parameters() if p.requires_grad]
        self._buffers_start = self.buffers.clone()
        self._outside = _outside_buffers(module, {slot.name for slot in self.layout.slots})
        self._outside_start = [buffer.clone() for buffer in self._outside]

    @property
    def weights(self) -> Tensor:
        return self.vector[: self.layout.num_weights]

    @property
    def buffers(self) -> Tensor:
        return self.vector[self.layout.num_weights :]

    @cached_property
    def has_batch_norm(self) -> bool:
        return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in self.module.modules())

    def load(self, values: Tensor) -> None:

        self.vector[: len(values)].copy_(values)
        for buffer, start in zip(self._outside, self._outside_start, strict=True):
            buffer.copy_(start)

    def reset_buffers(self) -> None:
        """Reset the float buffers to their initial values."""
        self.buffers.copy_(self._buffers_start)

    def check_views(self) -> None:
        """Check that the module still uses the vector.

        `.to(...)` and assignments to `.data` silently replace the views, and training would then change nothing.
        """
        for slot, view, path in zip(self.layout.slots, self._views, self._paths, strict=True):
            owner: nn.Module | None = self.module
            for part in path[:-1]:
                owner = None if owner is None else owner._modules.get(part)
            tensor = getattr(owner, path[-1], None)
            if tensor is None or tensor.data_ptr() != view.data_ptr():
                raise RuntimeError(
                    f"'{slot.name}' is no longer a view of the model's vector: something replaced it (.to(), .data=)"
                )


def layout_of(module: nn.Module) -> Layout:
    """The layout of a module: all weights, then all finite persistent float32 buffers, in their own order."""
    named: list[tuple[str, Tensor, Kind]] = [(n, p, "weight") for n, p in module.named_parameters()]
    named += [(n, b, "buffer") for n, b in _persistent_buffers(module) if b.is_floating_point()]
    slots: list[Slot] = []
    offset = 0
    for name, tensor, kind in named:
        if kind == "buffer" and not bool(torch.isfinite(tensor).all()):
            continue
        if tensor.dtype != torch.float32:
            raise InputError(f"model: '{name}' is {tensor.dtype}, but a model's vector is float32")
        slots.append(Slot(name, tuple(tensor.shape), kind, offset))
        offset += tensor.numel()
    if not any(slot.kind == "weight" for slot in slots):
        raise InputError("model: it has no weights to learn")
    return Layout(tuple(slots))


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def _persistent_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, buffer in module.named_buffers():
        owner, leaf = _owner(module, name)
        if leaf not in owner._non_persistent_buffers_set:
            yield name, buffer


def _outside_buffers(module: nn.Module, inside: set[str]) -> list[Tensor]:
    return [buffer for name, buffer in module.named_buffers() if name not in inside]


def raw_bytes(tensor: Tensor) -> memoryview:
    """A tensor's bytes in contiguous order, without a copy where it is contiguous already."""
    array = tensor.detach().cpu().contiguous().view(-1).numpy()
    return memoryview(array.view("uint8"))  # type: ignore[arg-type]
