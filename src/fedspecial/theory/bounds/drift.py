"""How far SPECIAL can move away from its anchor.

One round is theta' = (theta + gamma_G Delta + lam a) / (1 + lam), so with rho = 1/(1+lam)

    theta^t - a = sum_{tau < t} rho^(t - tau) gamma_G Delta^tau.

The paper prints the weights as rho^(tau + 1), which would give the first round the largest weight. In fact
the latest round has the largest weight. One sequence of weights is a permutation of the other, so their sums
agree and the lemma is still valid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedspecial.theory import validation
from fedspecial.theory.constants import RoundConfig, geometric_sum


def drift_radius(cfg: RoundConfig, grad_bound: float, t: int | None = None) -> float:
    """‖theta^t - a‖ <= gamma_G gamma_L E B (1 - (1+lam)^-t) / lam =: R_t, and R = gamma_G gamma_L E B / lam
    for all t.

    Holds in every run (not only in expectation), for any client weights that sum to one and any
    participation, under A1 alone. Proof: ‖d'‖ <= (‖d‖ + gamma_G gamma_L E B) / (1 + lam), and R is the fixed
    point. If clients take different numbers of local steps, use the largest. Without an anchor, or with
    lam = 0, the bound is gamma_G gamma_L E B t, and infinite for t = None.

    The bound is tight: a nearly linear loss, whose minimum is far away, attains it.
    """
    return cfg.pseudo_step * validation.nonnegative("grad_bound", grad_bound) * geometric_sum(cfg.effective_lam, t)


def paper_drift_bound_sq(cfg: RoundConfig, grad_bound: float) -> float:
    """E‖theta^t - a‖^2 <= gamma_G^2 gamma_L^2 E^2 B^2 / lam^2, as printed (Lemma "Uniform within-task
    drift").

    Holds for anchored tasks, with E counted in steps. The printed proof bounds E‖.‖ and squares, which is
    the wrong direction of Jensen's inequality. Because A1 makes the bound hold in every run, the squared
    bound holds as well (`drift_radius`). The paper claims it for every task. It does not hold without an
    anchor, as in the first task: there the distance grows with t. Infinite for lam = 0 or without an anchor.
    """
    return drift_radius(cfg, grad_bound) ** 2


def drift_step(radius: float, server_lr: float, delta_norm: float, lam: float) -> float:
    """r' = (r + gamma_G ‖Delta‖) / (1 + lam): the triangle inequality applied to one server step."""
    return (radius + server_lr * delta_norm) / (1 + lam)


def drift_radius_from_deltas(
    server_lr: float | Sequence[float], delta_norms: Sequence[float], lam: float | Sequence[float]
) -> float:
    """r_t by r_{t+1} = (r_t + gamma_G ‖Delta^t‖) / (1 + lam), r_0 = 0; then ‖theta^t - a‖ <= r_t.

    Needs no assumption. It holds whatever the clients do (momentum, Adam, different numbers of steps, even
    malicious updates), and for learning rates and lam that change from round to round, also adaptively.
    ``server_lr`` and ``lam`` may be sequences with one value per round.
    """
    rounds = len(delta_norms)
    steps = _per_round("server_lr", server_lr, rounds)
    lams = _per_round("lam", lam, rounds)
    radius = 0.0
    for step, norm, strength in zip(steps, delta_norms, lams, strict=True):
        radius = drift_step(radius, step, validation.nonnegative("delta_norms", norm), strength)
    return radius


def drift_radius_per_weight(server_lr: Sequence[float], deltas: ArrayLike, strengths: ArrayLike) -> NDArray[Any]:
    """|theta_k^t - a_k| <= r_k^t for every weight k, with r_k' = (r_k + gamma_G |Delta_k|) / (1 + Lam_k), r^0 = 0.

    Each weight has its own strength, which may change from round to round: theta_k' = (theta_k + gamma_G Delta_k
    + Lam_k a_k) / (1 + Lam_k). Proof: d_k = theta_k - a_k satisfies d_k' = (d_k + gamma_G Delta_k) / (1 + Lam_k),
    weight by weight; take absolute values. Needs no assumption, like `drift_radius_from_deltas`, which it is for one
    weight.

    ``deltas`` and ``strengths``: one row per round, one column per weight.
    """
    radius = np.zeros(np.asarray(deltas).shape[1])
    for step, delta, strength in zip(server_lr, np.asarray(deltas), np.asarray(strengths), strict=True):
        radius = (radius + step * np.abs(delta)) / (1 + strength)
    return radius


def anchored_drift_cap(server_lr: Sequence[float], delta_norms: Sequence[float], lam: Sequence[float]) -> float:
    """‖theta_A - a_A‖ <= max_t gamma_G ‖Delta_A^t‖ / lam_t for a set A of weights whose strengths are at least
    lam_t > 0 in round t, and also <= r_t with r' = (r + gamma_G ‖Delta_A‖) / (1 + lam_t), which is at most as large.

    Proof: on A, |d_k'| = |d_k + gamma_G Delta_k| / (1 + Lam_k) <= |d_k + gamma_G Delta_k| / (1 + lam_t), so ‖d_A'‖
    <= (‖d_A‖ + gamma_G ‖Delta_A‖) / (1 + lam_t). That is the recursion of one common lam_t, restricted to A, and
    Proposition D applies to it (`drift_radius_clip`). The set must be the same in all rounds; the strengths may vary
    in any way, also as a function of the updates. With A = all weights, lam_t is the smallest strength of all. Weights
    that are hardly pulled make that bound useless, hence the set.
    """
    pairs = zip(server_lr, delta_norms, lam, strict=True)
    return max((step * norm / validation.positive("lam", strength) for step, norm, strength in pairs), default=0.0)


def drift_radius_clip(server_lr: float, clip: float, lam: float) -> float:
    """‖theta^t - a‖ <= gamma_G C / lam when every client delta has norm at most C (clipped by the server).

    Proposition D: for any lam_t > 0 and any deltas, ‖theta^t - a‖ <= sup_{tau<t} gamma_G ‖Delta^tau‖ /
    lam_tau. Proof: let S be the supremum; ‖d‖ <= S and gamma_G ‖Delta‖ <= lam S give ‖d'‖ <= (S + lam S)/(1
    + lam) = S.
    """
    return (
        validation.nonnegative("server_lr", server_lr)
        * validation.nonnegative("clip", clip)
        / validation.positive("lam", lam)
    )


def special_c_drift_radius(grad_bound: float, lam: float, server_lr: float = 1.0) -> float:
    """‖theta^t - a‖ <= B / (2 lam) for SPECIAL-C with ``prox="step_scaled"``, its default, if gamma_G <= 1.

    One local step is theta' = (theta - gamma_L g + 2 gamma_L lam a) / (1 + 2 gamma_L lam), so that

        ‖theta' - a‖ <= (‖theta - a‖ + gamma_L B) / (1 + 2 gamma_L lam),

    and B / (2 lam) is the fixed point: a client that starts within it never leaves it. gamma_L cancels, so
    the bound holds for any learning rate, also a changing one, and for any number of local steps. The server
    moves theta to a convex combination of itself and the clients' models if gamma_G <= 1, and the ball is
    convex. With ``prox="penalty"`` the bound is the same as long as 2 gamma_L lam <= 1.

    With ``halve_lambda`` the method applies lam / 2. SPECIAL's radius at the same lam is 2 gamma_G gamma_L E
    times this one.
    """
    _check_convex_step(server_lr)
    return validation.nonnegative("grad_bound", grad_bound) / (2 * validation.positive("lam", lam))


def special_c_literal_drift_radius(
    client_lr: float, grad_bound: float, lam: float, server_lr: float = 1.0, steps_per_pull: int = 1
) -> float:
    """‖theta^t - a‖ <= gamma_L S B / (2 lam) for SPECIAL-C with the prox as printed, without gamma_L, if
    gamma_G <= 1.

    S = ``steps_per_pull`` is the number of local steps before a pull: 1 with ``prox="step_literal"``, the
    steps of an epoch with ``prox="epoch_literal"``. From one pull to the next,

        ‖theta' - a‖ <= (‖theta - a‖ + gamma_L S B) / (1 + 2 lam),

    with this fixed point. Clients with different numbers of steps: use the largest; a learning rate that
    changes: the largest. The argument for the server is that of `special_c_drift_radius`. The model that a client
    sends was just pulled, so a step between two pulls does not matter here.
    """
    _check_convex_step(server_lr)
    reach = validation.positive("client_lr", client_lr) * validation.positive("steps_per_pull", steps_per_pull)
    return reach * validation.nonnegative("grad_bound", grad_bound) / (2 * validation.positive("lam", lam))


def _check_convex_step(server_lr: float) -> None:
    if not 0 < validation.finite("server_lr", server_lr) <= 1:
        raise ValueError(f"server_lr must be in (0, 1] for this bound, got {server_lr!r}")


def geometric_limit(
    anchor: ArrayLike, delta: ArrayLike, server_lr: float, lam: float, t: int | None = None
) -> NDArray[np.float64]:
    """theta^t = a + gamma_G Delta (1 - (1+lam)^-t) / lam for a constant Delta; a + gamma_G Delta / lam for
    t = None.

    So theta - a is an exponential moving average, with beta = 1/(1+lam), of gamma_G Delta / lam.
    """
    if t is None:
        validation.positive("lam", lam)
    weight = geometric_sum(validation.nonnegative("lam", lam), t)
    start = np.asarray(anchor, dtype=np.float64)
    return start + validation.finite("server_lr", server_lr) * weight * np.asarray(delta, dtype=np.float64)


def half_life(lam: float) -> float:
    """ln 2 / ln(1 + lam): the number of rounds after which a delta has lost half its weight; infinite for lam = 0."""
    strength = validation.nonnegative("lam", lam)
    return math.log(2) / math.log1p(strength) if strength > 0 else math.inf


def _per_round(name: str, value: float | Sequence[float], rounds: int) -> list[float]:
    values = [value] * rounds if isinstance(value, int | float) else list(value)
    if len(values) != rounds:
        raise ValueError(f"{name} must have one value per round ({rounds}), got {len(values)}")
    return [validation.nonnegative(name, entry) for entry in values]
