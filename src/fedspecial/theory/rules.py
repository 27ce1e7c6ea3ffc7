"""How to choose lam, in rising order of what must be known, and how to aggregate without waiting for
everybody.

An adaptive lam keeps the drift caps and the forgetting caps, which hold on every path; it does not keep
BKT-S, whose weights must be fixed in advance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedspecial.theory import _validate as check
from fedspecial.theory.arrays import Vector, flat, flat_norm
from fedspecial.theory.constants import Constants, RoundConfig


def lam_for_radius(server_lr: float, clip: float, radius: float) -> float:
    """lam = gamma_G C / radius: keeps ‖theta - a‖ <= radius if client deltas are clipped at C (Proposition
    D)."""
    return check.positive("server_lr", server_lr) * check.nonnegative("clip", clip) / check.positive("radius", radius)


def trust_region_lam(theta_bar: Any, anchor: Any, radius: float, lam_min: float = 0.0) -> float:
    """lam_t = max(lam_min, ‖theta_bar - a‖ / radius - 1): ‖theta - a‖ <= radius for any deltas whatever.

    theta_bar = theta + gamma_G Delta. With lam_min = 0 the round is the projection onto the ball.
    """
    distance = flat_norm(flat(theta_bar) - flat(anchor))
    return max(check.nonnegative("lam_min", lam_min), distance / check.positive("radius", radius) - 1)


def budget_lam(linear: float, quadratic: float, budget: float, lam_min: float = 0.0) -> float:
    """The smallest lam >= lam_min with p x + q x^2 <= delta for x = 1/(1+lam): then F(theta') <= F(a) +
    delta.

    p = <grad F(a), theta_bar - a> is ``linear``, q = (K-1) L / 2 ‖theta_bar - a‖^2 is ``quadratic``, delta
    the budget. x* = 2 delta / (p + sqrt(p^2 + 4 q delta)), or for p < 0, where that cancels, (-p + sqrt(p^2
    + 4 q delta)) / (2 q). Holds on every path, for any deltas; aligned updates (p < 0) are let through.
    With the gradient of the last task alone (all that is left without old data) and L in place of (K-1) L
    the guarantee covers that task.
    """
    p, q = check.finite("linear", linear), check.nonnegative("quadratic", quadratic)
    delta, least = check.positive("budget", budget), check.nonnegative("lam_min", lam_min)
    root = math.hypot(p, 2 * math.sqrt(q) * math.sqrt(delta))
    top, bottom = (2 * delta, p + root) if p >= 0 else (root - p, 2 * q)
    return least if top >= bottom else max(least, bottom / top - 1)


def lam_for_bkt(cfg: RoundConfig, consts: Constants) -> float:
    """lam = gamma_G gamma_L E B (K-1) L / (eps G): the smallest that meets BKT-S (`bkt_step_max`)."""
    eps, slope = consts.need("alignment"), consts.need("old_grad_norm")
    if eps <= 0:
        raise ValueError(f"alignment must be above 0 for backward transfer, got {eps!r}")
    if slope == 0:
        raise ValueError(f"old_grad_norm must be above 0: no lam meets the condition, got {slope!r}")
    return cfg.pseudo_step * consts.grad_bound * cfg.num_old_tasks * consts.smoothness / (eps * slope)


def laplace_lam(cfg: RoundConfig, curvature_sum: float, curvature: float | None = None) -> float:
    """lam_K = gamma_G gamma_L E kappa, kappa the summed scalar curvature of the earlier tasks
    (`CurvatureLedger`).

    A scalar Laplace approximation without a Fisher matrix: mu = kappa, so on isotropic quadratics Phi = f_1
    + ... + f_K + const and SPECIAL reaches the joint optimum. With ``curvature`` h of the current task the
    E local steps are counted exactly: gamma_G (1 - (1 - gamma_L h)^E) kappa / h. With gamma_G = 1/i and
    equal curvatures lam_i = gamma_L E h (i-1)/i is nearly constant, which may be why a constant lam works
    beside that schedule.
    """
    kappa = check.nonnegative("curvature_sum", curvature_sum)
    if curvature is None:
        return cfg.pseudo_step * kappa
    h = check.positive("curvature", curvature)
    return cfg.server_lr * (1 - (1 - cfg.client_lr * h) ** cfg.local_steps) * kappa / h


class CurvatureLedger:
    """kappa_K = h_1 + ... + h_K: one number per finished task, tr(Hessian f_i(theta_i)) / d at its end."""

    def __init__(self) -> None:
        self._by_task: dict[int, float] = {}

    def add(self, task: int, h: float) -> None:
        """Enter the curvature of a finished task, once."""
        number = check.count("task", task)
        if number in self._by_task:
            raise ValueError(f"task must be new to the ledger, got {task!r}")
        self._by_task[number] = check.nonnegative("h", h)

    @property
    def total(self) -> float:
        """kappa, the weight mu to use for the next task."""
        return math.fsum(self._by_task.values())


def staleness_weight(tau: float, alpha: float = 0.5) -> float:
    """(1 + tau)^-alpha: weight of a delta that started tau versions ago."""
    return float((1 + check.nonnegative("tau", tau)) ** -check.nonnegative("alpha", alpha))


def aggregate_async(
    deltas: Sequence[Any],
    staleness: Sequence[float],
    clip: float | None = None,
    alpha: float = 0.5,
    quorum: int = 1,
) -> Vector | None:
    """Delta = (1/|A|) sum_{j in A} (1 + tau_j)^-alpha clip(Delta_j), or None (hold theta) below the quorum.

    Divided by the arrivals, not by N, so ‖Delta‖ <= C and the cap gamma_G C / lam holds for any delays,
    drops, empty events and orders of arrival. Leave out deltas of an earlier task. One arrival at a time, n
    per nominal round: use gamma_G / n and lam / n; the cap is the same.
    """
    if len(staleness) != len(deltas):
        raise ValueError(f"staleness must have one value per delta ({len(deltas)}), got {len(staleness)}")
    if len(deltas) < check.count("quorum", quorum):
        return None
    total: Vector | None = None
    for delta, tau in zip(deltas, staleness, strict=True):
        vector = flat(delta) * staleness_weight(tau, alpha)
        limit = 1.0 if clip is None else _shrink(flat_norm(delta), check.positive("clip", clip))
        total = vector * limit if total is None else total + vector * limit
    assert total is not None
    return np.asarray(total / len(deltas))


def _shrink(norm: float, clip: float) -> float:
    if not math.isfinite(norm):
        raise ValueError(f"deltas must be finite, got a norm of {norm!r}")
    return 1.0 if norm <= clip else clip / norm
