"""Robust means: what f faulty clients of a round can change in the result is bounded by the other clients' updates.

With δ_1 … δ_n the updates of a round and f: `max_faulty`,

    median            the median of each coordinate (for even n, the mean of the two in the middle)
    trimmed-mean      the mean of each coordinate without its f largest and f smallest values   (Yin et al., ICML 2018)
    krum              the δ_m with the smallest sum of squared distances to its n − f − 2 nearest others
                      (Blanchard et al., NeurIPS 2017)
    geometric-median  argmin_z Σ_m ‖z − δ_m‖, by Weiszfeld's iteration (Pillutla et al., IEEE TSP 2022)

Each client counts the same. The first two act on each coordinate, so vectors are aggregated one by one; the other two
measure distances over all vectors of an update together. All are computed in float64 over blocks of coordinates, so
that beside the updates themselves little memory is needed, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedspecial.config import Config
from fedspecial.core.messages import Tensors
from fedspecial.engine.aggregation.mean import norm

_BLOCK = 1 << 16
_ITERATIONS = 100
_TOLERANCE = 1e-7
_SMALLEST = 1e-6
Rows = Sequence[Tensor]
"""One vector of every client."""


def clip(deltas: Tensors, largest: float) -> Tensors:
    """δ · min(1, c/‖δ‖), where ‖δ‖ is over all vectors of the update; unchanged if it is short enough."""
    size = sum(norm(delta) ** 2 for delta in deltas.values()) ** 0.5
    if size <= largest:
        return deltas
    return {name: delta * (largest / size) for name, delta in deltas.items()}


class RobustMean:
    """Has the interface of `RunningMean`, and keeps references to the updates."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._updates: list[Tensors] = []

    def add(self, deltas: Tensors, weight: float = 1.0) -> None:
        self._updates.append(deltas)

    def result(self, divisor: float | None = None) -> Tensors:
        names = list(self._updates[0])
        stacks = {name: [update[name] for update in self._updates] for name in names}
        faulty = self._config.max_faulty
        match self._config.aggregation:
            case "median":
                return {name: _by_block(rows, _median) for name, rows in stacks.items()}
            case "trimmed-mean":
                return {name: _by_block(rows, lambda block: _trimmed(block, faulty)) for name, rows in stacks.items()}
            case "krum":
                chosen = _krum(_squared_distances(list(stacks.values())), faulty)
                return {name: rows[chosen].clone() for name, rows in stacks.items()}
            case _:
                weights = _weiszfeld(list(stacks.values()))
                return {name: _by_block(rows, lambda block: weights @ block) for name, rows in stacks.items()}


def _blocks(rows: Rows) -> Iterator[tuple[slice, Tensor]]:
    """(coordinates, the values of all clients there in float64)."""
    for start in range(0, len(rows[0]), _BLOCK):
        part = slice(start, start + _BLOCK)
        yield part, torch.stack([row[part].cpu().double() for row in rows])


def _by_block(rows: Rows, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    result = torch.empty_like(rows[0])
    for part, block in _blocks(rows):
        result[part] = reduce(block).to(result.dtype)
    return result


def _median(block: Tensor) -> Tensor:
    return _trimmed(block, (len(block) - 1) // 2)


def _trimmed(block: Tensor, faulty: int) -> Tensor:
    """The mean of each column without its `faulty` largest and smallest values."""
    return block.sort(dim=0).values[faulty : len(block) - faulty].mean(dim=0)


def _squared_distances(stacks: Sequence[Rows]) -> Tensor:
    """‖δ_a − δ_b‖² for all pairs, from differences, since ‖a‖² + ‖b‖² − 2ab cancels where updates are similar."""
    count = len(stacks[0])
    total = torch.zeros(count, count, dtype=torch.float64)
    for rows in stacks:
        for _, block in _blocks(rows):
            for a in range(count):
                total[a] += (block - block[a]).square().sum(dim=1)
    return total


def _krum(squared: Tensor, faulty: int) -> int:
    """The first client with the smallest score; its distance to itself, 0, is not among the others'."""
    others = squared.sort(dim=1).values[:, 1 : len(squared) - faulty - 1]
    return int(others.sum(dim=1).argmin())


def _weiszfeld(stacks: Sequence[Rows]) -> Tensor:
    """Weights w, with sum 1, such that Σ_m w_m·δ_m is the geometric median: w_m ∝ 1/‖δ_m − Σ_m w_m·δ_m‖.

    Distances are not taken to be smaller than a millionth of the median one, so that an update at the centre does not
    divide by 0.
    """
    count = len(stacks[0])
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    for _ in range(_ITERATIONS):
        squared = torch.zeros(count, dtype=torch.float64)
        for rows in stacks:
            for _, block in _blocks(rows):
                squared += (block - weights @ block).square().sum(dim=1)
        distances = squared.sqrt()
        if float(distances.median()) == 0:
            distances += 1e-300  # most updates are equal, and they are the median
        inverse = 1 / distances.clamp_min(_SMALLEST * float(distances.median()))
        updated = inverse / inverse.sum()
        done = float((updated - weights).abs().max()) < _TOLERANCE
        weights = updated
        if done:
            break
    return weights
