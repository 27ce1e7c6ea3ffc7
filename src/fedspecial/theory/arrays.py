"""Vectors from whatever holds them: NumPy arrays, torch tensors (never imported here), or containers of
these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def flat(value: Any) -> Vector:
    """One float64 vector out of an array, a tensor, or a list, tuple or dict of them (in their order)."""
    leaves = list(_leaves(value))
    if not leaves:
        return np.zeros(0)
    return leaves[0] if len(leaves) == 1 else np.concatenate(leaves)


def flat_norm(value: Any) -> float:
    """Euclidean norm over all entries, added up in float64.

    Give it weights only: BatchNorm running statistics are not parameters and are outside the theory.

    >>> flat_norm([np.array([3.0]), np.array([[4.0]])])
    5.0
    """
    return float(np.linalg.norm(flat(value)))


def _leaves(value: Any) -> Iterator[Vector]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not all(isinstance(entry, int | float) for entry in value):
        for entry in value:
            yield from _leaves(entry)
        return
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu().double().numpy()
    yield np.asarray(value, dtype=np.float64).reshape(-1)
