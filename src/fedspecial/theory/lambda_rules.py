"""Rules for choosing lam, ordered by how much must be known.

With an adaptive lam the bounds on drift and forgetting, which hold in every run, remain valid. BKT-S does not,
because it needs weights that are fixed in advance.
"""

from __future__ import annotations

import math
from typing import Any

from fedspecial.theory import validation
from fedspecial.theory.arrays import flat, flat_norm
from fedspecial.theory.constants import Constants, RoundConfig


def lam_for_radius(server_lr: float, clip: float, radius: float) -> float:
    """lam = gamma_G C / radius: ensures ‖theta - a‖ <= radius if client deltas are clipped at C
    (Proposition D)."""
    return (
        validation.positive("server_lr", server_lr)
        * validation.nonnegative("clip", clip)
        / validation.positive("radius", radius)
    )


def trust_region_lam(theta_bar: Any, anchor: Any, radius: float, lam_min: float = 0.0) -> float:
    """lam_t = max(lam_min, ‖theta_bar - a‖ / radius - 1): ‖theta - a‖ <= radius for any deltas.

    theta_bar = theta + gamma_G Delta. With lam_min = 0 the round is the projection onto the ball of that radius.
    """
    distance = flat_norm(flat(theta_bar) - flat(anchor))
    return max(validation.nonnegative("lam_min", lam_min), distance / validation.positive("radius", radius) - 1)


def budget_lam(linear: float, quadratic: float, budget: float, lam_min: float = 0.0) -> float:
    """The smallest lam >= lam_min with p x + q x^2 <= delta for x = 1/(1+lam): then F(theta') <= F(a) +
    delta.

    p = <grad F(a), theta_bar - a> is ``linear``, q = (K-1) L / 2 ‖theta_bar - a‖^2 is ``quadratic``, delta is
    the budget. x* = 2 delta / (p + sqrt(p^2 + 4 q delta)), or for p < 0, where that cancels, (-p + sqrt(p^2
    + 4 q delta)) / (2 q). Holds in every run, for any deltas. Aligned updates (p < 0) are not restricted.
    Without old data only the gradient of the last task is available; with it, and L in place of (K-1) L, the
    guarantee covers that task.
    """
    p, q = validation.finite("linear", linear), validation.nonnegative("quadratic", quadratic)
    delta, least = validation.positive("budget", budget), validation.nonnegative("lam_min", lam_min)
    root = math.hypot(p, 2 * math.sqrt(q) * math.sqrt(delta))
    top, bottom = (2 * delta, p + root) if p >= 0 else (root - p, 2 * q)
    return least if top >= bottom else max(least, bottom / top - 1)


def lam_for_bkt(cfg: RoundConfig, consts: Constants) -> float:
    """lam = gamma_G gamma_L E B (K-1) L / (eps G): the smallest lam for which BKT-S holds (`bkt_step_max`)."""
    eps, slope = consts.need("alignment"), consts.need("old_grad_norm")
    if eps <= 0:
        raise ValueError(f"alignment must be above 0 for backward transfer, got {eps!r}")
    if slope == 0:
        raise ValueError(f"old_grad_norm must be above 0, otherwise no lam meets the condition, got {slope!r}")
    return cfg.pseudo_step * consts.grad_bound * cfg.num_old_tasks * consts.smoothness / (eps * slope)


def laplace_lam(cfg: RoundConfig, curvature_sum: float, curvature: float | None = None) -> float:
    """lam_K = gamma_G gamma_L E kappa, where kappa is the summed scalar curvature of the earlier
    tasks (`CurvatureSum`).

    A scalar Laplace approximation without a Fisher matrix: mu = kappa, so on isotropic quadratics Phi = f_1
    + ... + f_K + const and SPECIAL reaches the joint optimum. With ``curvature`` h of the current task the
    E local steps are taken into account exactly: gamma_G (1 - (1 - gamma_L h)^E) kappa / h. With gamma_G = 1/i and
    equal curvatures, lam_i = gamma_L E h (i-1)/i is nearly constant. This may be why a constant lam works
    with that schedule.
    """
    kappa = validation.nonnegative("curvature_sum", curvature_sum)
    if curvature is None:
        return cfg.pseudo_step * kappa
    h = validation.positive("curvature", curvature)
    return cfg.server_lr * (1 - (1 - cfg.client_lr * h) ** cfg.local_steps) * kappa / h


class CurvatureSum:
    """kappa_K = h_1 + ... + h_K: one number per finished task, tr(Hessian f_i(theta_i)) / d at its end."""

    def __init__(self) -> None:
        self._by_task: dict[int, float] = {}

    def add(self, task: int, h: float) -> None:
        """Add the curvature of a finished task; each task can be added once."""
        number = validation.count("task", task)
        if number in self._by_task:
            raise ValueError(f"task must not have been added before, got {task!r}")
        self._by_task[number] = validation.nonnegative("h", h)

    @property
    def total(self) -> float:
        """kappa, the strength mu for the next task."""
        return math.fsum(self._by_task.values())
