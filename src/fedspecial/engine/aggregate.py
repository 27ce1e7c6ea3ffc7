"""The mean of the deltas (line 16 of Algorithm 1), summed as they arrive."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedspecial.core.messages import Tensors

# About 1 MB of float64: a block stays in the processor's cache while it is converted and added.
_BLOCK = 1 << 17
_CPU = torch.device("cpu")
_WITHOUT_FLOAT64 = ("mps",)


class RunningMean:
    """Weighted mean of named vectors in float64, rounded once, so the order of arrival does not matter.

    Needs one accumulator per name, for any number of clients. Each name is averaged over the clients that sent it. The
    sum is on the device of the deltas, or on the CPU where the device has no float64.
    """

    def __init__(self) -> None:
        self._sums: Tensors = {}
        self._weights: dict[str, float] = {}
        self._devices: dict[str, torch.device] = {}

    def add(self, deltas: Tensors, weight: float = 1.0) -> None:
        for name, delta in deltas.items():
            if name not in self._sums:
                device = _CPU if delta.device.type in _WITHOUT_FLOAT64 else delta.device
                self._sums[name] = torch.zeros(delta.shape, dtype=torch.float64, device=device)
                self._weights[name] = 0.0
                self._devices[name] = delta.device
            self._weights[name] += weight
            total = self._sums[name]
            if total.device.type != "cpu" or delta.device.type != "cpu":
                total.add_(delta.to(total.device), alpha=weight)
                continue
            if len(delta) <= _BLOCK:
                total.add_(delta, alpha=weight)
                continue
            for at in range(0, len(delta), _BLOCK):
                total[at : at + _BLOCK].add_(delta[at : at + _BLOCK], alpha=weight)

    def result(self, divisor: float | None = None) -> Tensors:
        """The mean, or the sum over `divisor` where absent clients count too."""
        scales = self._weights if divisor is None else dict.fromkeys(self._sums, divisor)
        means = {name: total.div_(scales[name]).float() for name, total in self._sums.items()}
        return {name: mean.to(self._devices[name]) for name, mean in means.items()}


def refusal(deltas: Tensors, sent: Tensors) -> str | None:
    """Why an update cannot be used as the change of the vectors that were sent, or None."""
    if deltas.keys() != sent.keys():
        return f"it carries {sorted(deltas)}, expected {sorted(sent)}"
    for name, vector in sent.items():
        delta = deltas[name]
        if delta.shape != vector.shape:
            return f"'{name}' has {delta.numel()} values, expected {vector.numel()}"
    return not_finite(deltas)


def not_finite(tensors: Tensors) -> str | None:
    """Which tensor cannot be used because it contains NaN or infinity, or None."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not math.isfinite(norm(tensor)):
            return f"'{name}' contains NaN or Inf"
    return None


def norm(vector: Tensor) -> float:
    """Euclidean norm; repeated in float64 where float32 overflows."""
    value = float(torch.linalg.vector_norm(vector))
    if math.isfinite(value):
        return value
    vector = vector.cpu() if vector.device.type in _WITHOUT_FLOAT64 else vector
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
