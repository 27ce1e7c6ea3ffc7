"""What training on a new task does to the loss F = f_1 + ... + f_{K-1} of the earlier ones.

Two kinds of statement: caps on forgetting, which follow from the distance to the anchor alone and hold on
every path, and backward transfer (BKT-S), which holds in expectation and needs the new task's gradients to
agree with the old ones. Alignment is a condition on the run, not on the problem: it fails once a client
comes near its own optimum, so it has to be measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from fedspecial.theory import _validate as check
from fedspecial.theory.constants import Constants, RoundConfig, geometric_square_sum


def bkt_step_max(cfg: RoundConfig, consts: Constants) -> float:
    """gamma_G gamma_L <= eps lam G / ((K-1) L E B): the condition of BKT-S on the product of the learning
    rates.

    The same as R <= eps G / ((K-1) L) with R of `drift_radius`. No round number appears, unlike in the
    paper's condition (`paper_bkt_client_lr_max`), whose learning rate falls like 1/t. Zero without an
    anchor.
    """
    eps = _aligned(consts)
    return (
        eps
        * cfg.pull
        * consts.need("old_grad_norm")
        / (cfg.num_old_tasks * consts.smoothness * cfg.local_steps * consts.grad_bound)
    )


def bkt_slack(cfg: RoundConfig, consts: Constants, t: int | None = None) -> float:
    """E F(theta^t) <= F(a) + (K-1) L (gamma_G gamma_L)^2 E sigma_L^2 (1 - rho^(2t)) / (N (lam^2 + 2 lam)).

    BKT-S: the slack of backward transfer for every t under `bkt_step_max`, alignment eps > 0 at every local
    iterate, A1 to A4, K >= 2, and lam fixed during the task. Proof: split d = theta^t - a into mean and
    noise, E‖d‖^2 <= 2 E‖mean‖^2 + 2 E‖noise‖^2. Mean: Jensen with weights w_tau = rho^(t - tau), which sum
    to at most 1/lam, gives g^2 (1/lam) E B * (1/M) sum w E‖grad‖, and under the condition the linear term
    -g eps G (1/M) sum w E‖grad‖ cancels it. Noise: martingale differences over steps, clients and rounds,
    g^2 sum w^2 E sigma_L^2 / N.

    Here 1/N comes from averaging, not from smaller steps, and 2 is lost at most where noise dominates.
    t = None is the limit of many rounds; infinite at lam = 0.
    """
    return (
        cfg.num_old_tasks
        * consts.smoothness
        * cfg.step**2
        * cfg.local_steps
        * consts.need("sigma_local") ** 2
        * geometric_square_sum(cfg.pull, t)
        / cfg.clients_per_round
    )


def forgetting_cap(old_grad_norm: float, radius: float, num_old_tasks: int, smoothness: float) -> float:
    """F(theta) - F(a) <= G r + (K-1) L r^2 / 2 whenever ‖theta - a‖ <= r.

    No alignment, no expectation: the descent lemma for the (K-1)L-smooth F. Use for r the radius R, the
    online recursion, or the measured distance.
    """
    slope = check.nonnegative("old_grad_norm", old_grad_norm)
    distance = check.nonnegative("radius", radius)
    curvature = check.count("num_old_tasks", num_old_tasks) * check.positive("smoothness", smoothness)
    return slope * distance + curvature * distance**2 / 2


def chained_forgetting_cap(end_grad_norm: float, later_radii: Sequence[float], smoothness: float) -> float:
    """f_i(theta_K) - f_i(theta_i) <= g_i P + L P^2 / 2, with P the sum of the radii of tasks i+1, ..., K.

    ``end_grad_norm`` is g_i = ‖grad f_i(theta_i)‖, one number measured when task i ends, so no old data is
    needed later. The triangle inequality over the anchors, then the descent lemma.
    """
    path = sum(check.nonnegative("later_radii", radius) for radius in later_radii)
    return forgetting_cap(end_grad_norm, path, 1, smoothness)


def radius_for_budget(old_grad_norm: float, num_old_tasks: int, smoothness: float, budget: float) -> float:
    """r = 2 delta / (G + sqrt(G^2 + 2 (K-1) L delta)): the largest radius with `forgetting_cap` <= delta.

    The positive root of (K-1) L r^2 / 2 + G r = delta, in the form that does not cancel.
    """
    slope = check.nonnegative("old_grad_norm", old_grad_norm)
    delta = check.nonnegative("budget", budget)
    curvature = check.count("num_old_tasks", num_old_tasks) * check.positive("smoothness", smoothness)
    if delta == 0:
        return 0.0
    return 2 * delta / (slope + math.hypot(slope, math.sqrt(2 * curvature * delta)))


def old_grad_norm_upper(end_grad_norms: Sequence[float], radii: Sequence[float], smoothness: float) -> float:
    """G <= sum_{i<K} (g_i + L * (R_{i+1} + ... + R_{K-1})): G from numbers kept when each task ended.

    ``end_grad_norms`` are g_1, ..., g_{K-1} and ``radii`` R_1, ..., R_{K-1} (measured drifts or caps); the
    first radius is not used, for task 1 ends where it ends. Smoothness moves each gradient along to the
    anchor.
    """
    if len(end_grad_norms) != len(radii) or not radii:
        raise ValueError(f"radii must have one value per end_grad_norm ({len(end_grad_norms)}), got {len(radii)}")
    curvature = check.positive("smoothness", smoothness)
    total, path = 0.0, 0.0
    for task in range(len(radii) - 1, -1, -1):
        total += check.nonnegative("end_grad_norms", end_grad_norms[task]) + curvature * path
        path += check.nonnegative("radii", radii[task]) if task > 0 else 0.0
    return total


def sigma_task_bound(grad_bound: float, alignment: float, form: Literal["sharp", "paper"] = "sharp") -> float:
    """sigma_T <= B sqrt(max{1, 2(1 - eps)}) if the cosine of any two tasks' gradients is at least eps.

    ‖x - y‖^2 <= a^2 + b^2 - 2 eps a b on [0, B]^2 is largest at a corner, (B, 0) or (B, B). The paper's
    statement (``form="paper"``) is sigma_T^2 <= (3 - 2 eps) B^2, which is valid and loose; the last line of
    its proof is the sharp one. Returned is sigma_T itself, not its square.
    """
    bound, eps = check.nonnegative("grad_bound", grad_bound), check.cosine("alignment", alignment)
    if form not in ("sharp", "paper"):
        raise ValueError(f"form must be 'sharp' or 'paper', got {form!r}")
    return bound * math.sqrt(3 - 2 * eps if form == "paper" else max(1.0, 2 * (1 - eps)))


def _aligned(consts: Constants) -> float:
    eps = consts.need("alignment")
    if eps <= 0:
        raise ValueError(f"alignment must be above 0 for backward transfer, got {eps!r}")
    return eps
