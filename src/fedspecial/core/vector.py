"""A model is one vector.

All trainable weights and float buffers of a module are stored in one contiguous tensor; the module's own tensors are
views of it. Download, delta, mean, blend, norm and checkpoint are then one operation on one tensor each.
Weights come first, buffers after them, so "weights only" is a prefix. Frozen weights (see `frozen.py`), integer
counters, non-persistent and non-finite buffers (such as -inf masks) stay outside and are never averaged.

The vector is float32, or float64 for a model with float64 weights. Weights of another type, such as bfloat16, are
copies of their part of the vector: the vector is trained, and the copies are written again after every step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedspecial.core.forward import Inputs, output_of, output_with, scores_of, with_dtype
from fedspecial.core.frozen import frozen_modules, frozen_tensors, tensors_sha256
from fedspecial.core.messages import raw_bytes
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
    """Names, shapes, kinds and offsets of everything in a model's vector, and its type.

    frozen: hash of the frozen part, None if everything is trained
    """

    slots: tuple[Slot, ...]
    dtype: torch.dtype = torch.float32
    frozen: str | None = None

    @cached_property
    def size(self) -> int:
        return sum(slot.numel for slot in self.slots)

    @cached_property
    def num_weights(self) -> int:
        return sum(slot.numel for slot in self.slots if slot.kind == "weight")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of names, shapes, kinds and the frozen part: two sites may exchange vectors only if theirs agree."""
        table: list[object] = [[slot.name, list(slot.shape), slot.kind] for slot in self.slots]
        if self.dtype != torch.float32:
            table.append(str(self.dtype))
        if self.frozen is not None:
            table.append({"frozen": self.frozen})
        return hashlib.sha256(json.dumps(table).encode()).hexdigest()

    @cached_property
    def statistics(self) -> tuple[Tensor, Tensor]:
        """Where the means and the variances of the BatchNorm layers are in the vector, in the same order."""
        slots = {slot.name: slot for slot in self.slots if slot.kind == "buffer"}
        layers = [name.removesuffix("running_mean") for name in slots if name.endswith("running_mean")]
        layers = [name for name in layers if f"{name}running_var" in slots]

        def places(leaf: str) -> Tensor:
            parts = [torch.arange(slot.numel) + slot.offset for slot in (slots[name + leaf] for name in layers)]
            return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

        return places("running_mean"), places("running_var")

    def named(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        for slot in self.slots:
            yield slot.name, slot.view(vector)

    def digest(self, vector: Tensor) -> str:
        """SHA-256 of the model: its layout, with the frozen part, and the bytes of its vector."""
        sha = hashlib.sha256(self.fingerprint.encode())
        sha.update(raw_bytes(vector))
        return sha.hexdigest()


class FlatModel:
    """A module whose trainable weights and float buffers are views of `vector`.

    trainable: the module's trainable weights, for their gradients
    values:    the same weights in the vector, which a step changes; then call `write_copies` if `has_copies`
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layout = layout_of(module)
        first = next(iter(module.parameters()))
        self.vector = torch.empty(self.layout.size, dtype=self.layout.dtype, device=first.device)
        self.trainable: list[nn.Parameter] = []
        self.values: list[Tensor] = []
        self._views: list[tuple[Slot, Tensor, list[str]]] = []
        self._copies: list[tuple[Kind, Tensor, Tensor]] = []
        for slot in self.layout.slots:
            self._attach(slot)
        self._input_dtype = next((w.dtype for w in module.parameters() if w.is_floating_point()), torch.float32)
        self._frozen_norms = [m for m in frozen_modules(module) if isinstance(m, nn.modules.batchnorm._NormBase)]
        self._buffers_start = self.buffers.clone()
        self._outside = _outside_buffers(module, {slot.name for slot in self.layout.slots})
        self._outside_start = [buffer.clone() for buffer in self._outside]

    def _attach(self, slot: Slot) -> None:
        owner, leaf = _owner(self.module, slot.name)
        tensor, view = getattr(owner, leaf), slot.view(self.vector)
        view.copy_(tensor.detach())
        if tensor.dtype == self.layout.dtype:
            tensor.data = view
            self._views.append((slot, view, slot.name.split(".")))
        else:
            self._copies.append((slot.kind, tensor, view))
        if slot.kind == "weight":
            self.trainable.append(tensor)
            self.values.append(tensor if tensor.dtype == self.layout.dtype else view)

    def __call__(self, inputs: Inputs) -> Tensor:
        """The scores that the module gives these inputs."""
        return scores_of(output_of(self.module, self.converted(inputs)))

    def converted(self, inputs: Any) -> Any:
        """The inputs in the type of the model's numbers."""
        return inputs if self._input_dtype == torch.float32 else with_dtype(inputs, self._input_dtype)

    def scores_with(self, tensors: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
        """The scores with the tensors of another vector (`Layout.named`); the module's own are not changed."""
        if self._copies:
            own = self.module.state_dict()
            tensors = {name: tensor.to(own[name].dtype) for name, tensor in tensors.items()}
        return scores_of(output_with(self.module, tensors, self.converted(inputs)))

    @property
    def weights(self) -> Tensor:
        return self.vector[: self.layout.num_weights]

    @property
    def buffers(self) -> Tensor:
        return self.vector[self.layout.num_weights :]

    @property
    def has_copies(self) -> bool:
        """Whether some of the module's tensors have another type than the vector."""
        return bool(self._copies)

    @cached_property
    def has_batch_norm(self) -> bool:
        """Whether it has a BatchNorm layer that is trained; such a layer cannot normalise a single sample."""
        frozen = {id(part) for part in self._frozen_norms}
        norms = (part for part in self.module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))
        return any(id(part) not in frozen for part in norms)

    def train(self) -> None:
        """Training mode, except for frozen BatchNorm layers."""
        self.module.train()
        for norm in self._frozen_norms:
            norm.eval()

    def load(self, values: Tensor) -> None:
        """Take over the values of a vector, which may lack the buffers; what is outside is reset to its start."""
        self.vector[: len(values)].copy_(values)
        for buffer, start in zip(self._outside, self._outside_start, strict=True):
            buffer.copy_(start)
        if self._copies:
            self._write("weight", "buffer")

    def load_buffers(self, values: Tensor | None) -> None:
        """Take over the values of the float buffers; None resets them to their initial values."""
        self.buffers.copy_(self._buffers_start if values is None else values)
        if self._copies:
            self._write("weight", "buffer")

    def write_copies(self) -> None:
        """Write the vector's values to the weights of another type."""
        self._write("weight")

    @torch.no_grad()
    def _write(self, *kinds: Kind) -> None:
        for kind, tensor, view in self._copies:
            if kind in kinds:
                tensor.copy_(view)

    def read_buffer_copies(self) -> None:
        """Take over the float buffers of another type, which the module changed while it was trained."""
        for kind, tensor, view in self._copies:
            if kind == "buffer":
                view.copy_(tensor)

    def state_of(self, vector: Tensor) -> dict[str, Tensor]:
        """The module's state without the frozen part, with the values of a vector, in memory of its own."""
        self.load(vector)
        state, frozen = self.module.state_dict(), frozen_tensors(self.module)
        # A module may add objects of other types to its state (`get_extra_state`); files contain tensors only.
        state = {name: value for name, value in state.items() if isinstance(value, Tensor) and name not in frozen}
        return {name: value.cpu().clone() for name, value in state.items()}

    def frozen_state(self) -> dict[str, Tensor]:
        """The frozen part of the module's state, in memory of its own."""
        return {name: tensor.cpu().clone() for name, tensor in frozen_tensors(self.module).items()}

    def check_views(self) -> None:
        """Check that the module still uses the vector.

        `.to(...)` and assignments to `.data` silently replace the views, and training would then change nothing.
        """
        for slot, view, path in self._views:
            owner: nn.Module | None = self.module
            for part in path[:-1]:
                owner = None if owner is None else owner._modules.get(part)
            tensor = getattr(owner, path[-1], None)
            if tensor is None or tensor.data_ptr() != view.data_ptr():
                raise RuntimeError(
                    f"'{slot.name}' is no longer a view of the model's vector: something replaced it (.to(), .data=)"
                )


def layout_of(module: nn.Module) -> Layout:
    """The layout of a module: all trainable weights, then all finite persistent float buffers that are not frozen."""
    named: list[tuple[str, Tensor, Kind]] = [(n, p, "weight") for n, p in module.named_parameters() if p.requires_grad]
    frozen = frozen_tensors(module)
    named += [(n, b, "buffer") for n, b in _persistent_buffers(module) if b.is_floating_point() and n not in frozen]
    slots: list[Slot] = []
    offset, dtype = 0, torch.float32
    for name, tensor, kind in named:
        if kind == "buffer" and not bool(torch.isfinite(tensor).all()):
            continue
        if not tensor.is_floating_point():
            raise InputError(f"model: '{name}' is {tensor.dtype}; trainable weights must be floating-point")
        slots.append(Slot(name, tuple(tensor.shape), kind, offset))
        offset += tensor.numel()
        dtype = torch.float64 if tensor.dtype == torch.float64 else dtype
    if not any(slot.kind == "weight" for slot in slots):
        raise InputError("model: it has no weights to learn (none has requires_grad=True)")
    return Layout(tuple(slots), dtype, tensors_sha256(frozen) if frozen else None)


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
