"""How training on a new task changes the loss F = f_1 + ... + f_{K-1} of the earlier tasks.

There are two kinds of statement. Bounds on forgetting follow from the distance to the anchor alone and hold
in every run. Backward transfer (BKT-S) holds in expectation, and only if the new task's gradients are aligned
with the gradients of the earlier tasks. Alignment is a condition on the run, not on the problem: it fails
when a client comes close to its own optimum, so it has to be measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from fedspecial.theory import validation
from fedspecial.theory.constants import Constants, RoundConfig, geometric_square_sum


def bkt_step_max(cfg: RoundConfig, consts: Constants) -> float:
    """gamma_G gamma_L <= eps lam G / ((K-1) L E B): the condition of BKT-S on the product of the learning
    rates.

    Equivalent to R <= eps G / ((K-1) L), where R is the `drift_radius`. The condition does not depend on the
    round, unlike the paper's condition (`paper_bkt_client_lr_max`), whose learning rate falls like 1/t. The
    value is zero without an anchor.
    """
    eps = _aligned(consts)
    return (
        eps
        * cfg.effective_lam
        * consts.need("old_grad_norm")
        / (cfg.num_old_tasks * consts.smoothness * cfg.local_steps * consts.grad_bound)
    )


def bkt_slack(cfg: RoundConfig, consts: Constants, t: int | None = None) -> float:
    """E F(theta^t) <= F(a) + (K-1) L (gamma_G gamma_L)^2 E sigma_L^2 (1 - rho^(2t)) / (N (lam^2 + 2 lam)).

    BKT-S: the slack of backward transfer. It holds for every t under the condition of `bkt_step_max`,
    alignment eps > 0 at every local iterate, A1 to A4, K >= 2, and a lam that is fixed during the task.

    Proof: split d = theta^t - a into mean and noise, E‖d‖^2 <= 2 E‖mean‖^2 + 2 E‖noise‖^2. Mean: Jensen with
    weights w_tau = rho^(t - tau), which sum to at most 1/lam, gives g^2 (1/lam) E B * (1/M) sum w E‖grad‖, and
    under the condition the linear term -g eps G (1/M) sum w E‖grad‖ cancels it. Noise: martingale differences
    over steps, clients and rounds, g^2 sum w^2 E sigma_L^2 / N.

    The factor 1/N comes from averaging, not from smaller learning rates. Where noise dominates, the slack is
    at most twice the true increase. t = None is the limit of many rounds; it is infinite for lam = 0.
    """
    return (
        cfg.num_old_tasks
        * consts.smoothness
        * cfg.step**2
        * cfg.local_steps
        * consts.need("sigma_local") ** 2
        * geometric_square_sum(cfg.effective_lam, t)
        / cfg.clients_per_round
    )


def forgetting_cap(old_grad_norm: float, radius: float, num_old_tasks: int, smoothness: float) -> float:
    """F(theta) - F(a) <= G r + (K-1) L r^2 / 2 whenever ‖theta - a‖ <= r.

    Needs no alignment and holds in every run. It is the descent lemma for F, which is (K-1)L-smooth. Use the
    radius R, the recursion over the deltas, or the measured distance as r.
    """
    slope = validation.nonnegative("old_grad_norm", old_grad_norm)
    distance = validation.nonnegative("radius", radius)
    curvature = validation.count("num_old_tasks", num_old_tasks) * validation.positive("smoothness", smoothness)
    return slope * distance + curvature * distance**2 / 2


def chained_forgetting_cap(end_grad_norm: float, later_radii: Sequence[float], smoothness: float) -> float:
    """f_i(theta_K) - f_i(theta_i) <= g_i P + L P^2 / 2, with P the sum of the radii of tasks i+1, ..., K.

    ``end_grad_norm`` is g_i = ‖grad f_i(theta_i)‖, one number that is measured when task i ends, so that no
    old data is needed later. Proof: the triangle inequality over the anchors, then the descent lemma.
    """
    path = sum(validation.nonnegative("later_radii", radius) for radius in later_radii)
    return forgetting_cap(end_grad_norm, path, 1, smoothness)


def radius_for_budget(old_grad_norm: float, num_old_tasks: int, smoothness: float, budget: float) -> float:
    """r = 2 delta / (G + sqrt(G^2 + 2 (K-1) L delta)): the largest radius with `forgetting_cap` <= delta.

    The positive root of (K-1) L r^2 / 2 + G r = delta, in the form without cancellation.
    """
    slope = validation.nonnegative("old_grad_norm", old_grad_norm)
    delta = validation.nonnegative("budget", budget)
    curvature = validation.count("num_old_tasks", num_old_tasks) * validation.positive("smoothness", smoothness)
    if delta == 0:
        return 0.0
    return 2 * delta / (slope + math.hypot(slope, math.sqrt(2 * curvature * delta)))


def old_grad_norm_upper(end_grad_norms: Sequence[float], radii: Sequence[float], smoothness: float) -> float:
    """G <= sum_{i<K} (g_i + L * (R_{i+1} + ... + R_{K-1})): G from numbers stored when each task ended.

    ``end_grad_norms`` are g_1, ..., g_{K-1} and ``radii`` R_1, ..., R_{K-1} (measured drifts or bounds). The
    first radius is not used, because g_1 is measured where task 1 ends. Smoothness bounds how much each
    gradient changes on the way to the anchor.
    """
    if len(end_grad_norms) != len(radii) or not radii:
        raise ValueError(f"radii must have one value per end_grad_norm ({len(end_grad_norms)}), got {len(radii)}")
    curvature = validation.positive("smoothness", smoothness)
    total, path = 0.0, 0.0
    for task in range(len(radii) - 1, -1, -1):
        total += validation.nonnegative("end_grad_norms", end_grad_norms[task]) + curvature * path
        path += validation.nonnegative("radii", radii[task]) if task > 0 else 0.0
    return total


def sigma_task_bound(grad_bound: float, alignment: float, form: Literal["sharp", "paper"] = "sharp") -> float:
    """sigma_T <= B sqrt(max{1, 2(1 - eps)}) if the cosine of any two tasks' gradients is at least eps.

    ‖x - y‖^2 <= a^2 + b^2 - 2 eps a b on [0, B]^2 is largest at a corner, (B, 0) or (B, B). The paper's
    statement (``form="paper"``) is sigma_T^2 <= (3 - 2 eps) B^2, which is valid but loose. The last line of
    its proof contains the sharp bound. The function returns sigma_T, not its square.
    """
    bound, eps = validation.nonnegative("grad_bound", grad_bound), validation.cosine("alignment", alignment)
    if form not in ("sharp", "paper"):
        raise ValueError(f"form must be 'sharp' or 'paper', got {form!r}")
    return bound * math.sqrt(3 - 2 * eps if form == "paper" else max(1.0, 2 * (1 - eps)))


def _aligned(consts: Constants) -> float:
    eps = consts.need("alignment")
    if eps <= 0:
        raise ValueError(f"alignment must be above 0 for backward transfer, got {eps!r}")
    return eps
