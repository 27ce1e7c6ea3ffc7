"""Flat NumPy vectors from NumPy arrays, torch tensors, or containers of either.

Tensors are recognised by their ``detach`` method, so that torch is never imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def flat(value: Any) -> Vector:
    """Concatenate an array, a tensor, or a list, tuple or dict of them (in their order) into one float64 vector."""
    leaves = list(_leaves(value))
    if not leaves:
        return np.zeros(0)
    return leaves[0] if len(leaves) == 1 else np.concatenate(leaves)


def flat_norm(value: Any) -> float:
    """Euclidean norm over all entries, computed in float64.

    Pass weights only. BatchNorm running statistics are not parameters, and the theory does not cover them.

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
