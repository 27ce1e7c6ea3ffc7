"""A bank of BatchNorm statistics: those of each task, mixed for every sample by how well they fit it.

A set k has a mean m_kc and a variance v_kc for each channel c of a BatchNorm layer. For a sample, let μ_c and s_c be
the mean and the variance of channel c of the input of the first BatchNorm layer. The set fits the sample by

    d_k = ½ · mean_c [ ((μ_c − m_kc)² + s_c) / v_kc + log v_kc ],

the negative log-likelihood of its values under normal distributions, and gets the weight w_k ∝ exp(−d_k / temperature).
Every BatchNorm layer then normalises the sample with the mean and the variance of the mixture:

    m = Σ_k w_k·m_k,      v = Σ_k w_k·(v_k + m_k²) − m².

Temperature 0 uses the set that fits best. No task label is needed, and no batch of one domain: a sample is predicted in
the same way whatever the other samples are. The weights are found when the first layer is reached, so a prediction is
one forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedspecial.core.vector import Layout

PREFIX = "statistics_bank/"
"""The names of the stored sets in messages, in the server's state and in files: the prefix and a number from 1."""

BatchNorm = nn.modules.batchnorm._BatchNorm


@dataclass
class _Layer:
    """A BatchNorm layer with its statistics in all sets, one row per set."""

    module: BatchNorm
    means: Tensor
    variances: Tensor


@dataclass
class StatisticsBank:
    """The sets of a module, the current one included.

    layers:  the layers that have running statistics, in the order of the module
    """

    layers: list[_Layer]
    temperature: float
    _first: _Layer | None = field(default=None, init=False)
    _weights: Tensor = field(default_factory=lambda: torch.empty(0), init=False)

    @staticmethod
    def of_vectors(module: nn.Module, layout: Layout, sets: list[Tensor], temperature: float) -> StatisticsBank:
        """sets: vectors of all float buffers, the last part of a model's vector"""
        slots = {slot.name: slot for slot in layout.slots if slot.kind == "buffer"}
        start = layout.num_weights

        def rows(name: str) -> Tensor:
            at, size = slots[name].offset - start, slots[name].numel
            return torch.stack([one[at : at + size] for one in sets])

        return StatisticsBank.of_rows(module, {name: rows(name) for name in slots}, temperature)

    @staticmethod
    def of_rows(module: nn.Module, named: Mapping[str, Tensor], temperature: float) -> StatisticsBank:
        """named: buffer of the module → its values, one row per set; layers whose statistics are frozen have none"""
        layers = [
            _Layer(part, named[f"{name}.running_mean"], named[f"{name}.running_var"])
            for name, part in module.named_modules()
            if isinstance(part, BatchNorm) and f"{name}.running_mean" in named
        ]
        return StatisticsBank(layers, temperature)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the module's BatchNorm layers use the bank; for evaluation mode."""
        for layer in self.layers:
            layer.module.forward = partial(self._normalise, layer)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for layer in self.layers:
                del layer.module.forward

    def _normalise(self, layer: _Layer, x: Tensor) -> Tensor:
        if self._first is None or layer is self._first:  # a new batch begins
            self._first = layer
            self._weights = fit_weights(x, layer.means, layer.variances + layer.module.eps, self.temperature)
        mean = self._weights @ layer.means
        variance = self._weights @ (layer.variances + layer.means.square()) - mean.square()
        scale = (variance + layer.module.eps).rsqrt()
        if layer.module.affine:
            scale = scale * layer.module.weight
        shift = -mean * scale if layer.module.bias is None else layer.module.bias - mean * scale
        shape = (*scale.shape, *(1 for _ in range(x.dim() - 2)))
        return torch.addcmul(shift.view(shape), x, scale.view(shape)).to(x.dtype)


def fit_weights(x: Tensor, means: Tensor, variances: Tensor, temperature: float) -> Tensor:
    """The weight of each set for each sample: how well its statistics fit the channels of `x`, the layer's input."""
    values = x.flatten(2) if x.dim() > 2 else x.unsqueeze(2)
    mean, spread = values.mean(2).unsqueeze(1), values.var(2, correction=0).unsqueeze(1)
    distance = 0.5 * (((mean - means).square() + spread) / variances + variances.log()).mean(2)
    if temperature == 0:
        return nn.functional.one_hot(distance.argmin(1), len(means)).to(means.dtype)
    return torch.softmax(-distance / temperature, 1)


class BankedModule(nn.Module):
    """A module that predicts with a bank of statistics, as a module of its own; in training mode it is the module."""

    def __init__(self, module: nn.Module, bank: StatisticsBank) -> None:
        super().__init__()
        self.module = module
        self._bank = bank

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if self.training:
            return self.module(*inputs, **named)
        with self._bank.active():
            return self.module(*inputs, **named)


def sets_in(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored sets among named tensors, by name, in their order."""
    found = [name for name in tensors if name.startswith(PREFIX)]
    return {name: tensors[name] for name in sorted(found, key=lambda name: int(name.removeprefix(PREFIX)))}


def sets_by_buffer(sets: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """The stored sets as a file contains them: each buffer of each set under its own name, SET/BUFFER."""
    named = {}
    for name, values in sets.items():
        for slot in layout.slots:
            if slot.kind == "buffer":
                at = slot.offset - layout.num_weights
                named[f"{name}/{slot.name}"] = values[at : at + slot.numel].view(slot.shape).clone()
    return named


def split_sets(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Inverse of `sets_by_buffer` for the state of a model file: the model's own state, and set → buffer → values."""
    own: dict[str, Tensor] = {}
    sets: dict[str, dict[str, Tensor]] = {}
    for name, values in state.items():
        if not name.startswith(PREFIX):
            own[name] = values
            continue
        number, _, buffer = name.removeprefix(PREFIX).partition("/")
        sets.setdefault(f"{PREFIX}{number}", {})[buffer] = values
    return own, {name: sets[name] for name in sets_in({name: torch.empty(0) for name in sets})}
