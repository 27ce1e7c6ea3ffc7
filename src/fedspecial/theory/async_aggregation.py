"""Aggregation of updates that arrive late or not at all, without waiting for all clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedspecial.core import staleness as rules
from fedspecial.theory import validation
from fedspecial.theory.arrays import Vector, flat, flat_norm


def staleness_weight(tau: float, alpha: float = 0.5) -> float:
    """(1 + tau)^-alpha: weight of a delta that was computed from the model tau versions ago."""
    validation.nonnegative("tau", tau)
    return rules.staleness_weight(tau, "polynomial", validation.nonnegative("alpha", alpha))


def aggregate_async(
    deltas: Sequence[Any],
    staleness: Sequence[float],
    clip: float | None = None,
    alpha: float = 0.5,
    quorum: int = 1,
) -> Vector | None:
    """Delta = (1/|A|) sum_{j in A} (1 + tau_j)^-alpha clip(Delta_j), or None (keep theta) below the quorum.

    The sum is divided by the number of arrived deltas, not by N. Hence ‖Delta‖ <= C, and the bound
    gamma_G C / lam on the drift holds for any delays, lost updates and order of arrival. Do not pass deltas of
    an earlier task. If deltas are applied one at a time, n per nominal round, use gamma_G / n and lam / n; the
    bound is the same.
    """
    if len(staleness) != len(deltas):
        raise ValueError(f"staleness must have one value per delta ({len(deltas)}), got {len(staleness)}")
    if len(deltas) < validation.count("quorum", quorum):
        return None
    total: Vector | None = None
    for delta, tau in zip(deltas, staleness, strict=True):
        vector = flat(delta) * staleness_weight(tau, alpha)
        limit = 1.0 if clip is None else _shrink(flat_norm(delta), validation.positive("clip", clip))
        total = vector * limit if total is None else total + vector * limit
    assert total is not None
    return np.asarray(total / len(deltas))


def _shrink(norm: float, clip: float) -> float:
    if not math.isfinite(norm):
        raise ValueError(f"deltas must be finite, got a norm of {norm!r}")
    return 1.0 if norm <= clip else clip / norm
