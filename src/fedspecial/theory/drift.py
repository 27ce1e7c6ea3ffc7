"""How far SPECIAL can move from its anchor.

One round is theta' = (theta + gamma_G Delta + lam a) / (1 + lam), so with rho = 1/(1+lam)

    theta^t - a = sum_{tau < t} rho^(t - tau) gamma_G Delta^tau.

The paper prints the weights as rho^(tau + 1), which would make the first round count most; in truth the
latest does. The two sequences of weights are permutations of each other, so their sums agree and the lemma
stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedspecial.theory import _validate as check
from fedspecial.theory.constants import RoundConfig, geometric_sum


def drift_radius(cfg: RoundConfig, grad_bound: float, t: int | None = None) -> float:
    """‖theta^t - a‖ <= gamma_G gamma_L E B (1 - (1+lam)^-t) / lam =: R_t, and R = gamma_G gamma_L E B / lam
    for all t.

    Holds on every path, for any weights that sum to one and any participation, under A1 alone. One line:
    ‖d'‖ <= (‖d‖ + gamma_G gamma_L E B) / (1 + lam), and R is the fixed point. For unequal local steps use the
    largest. Without an anchor, or with lam = 0, the cap is gamma_G gamma_L E B t, and infinite for t = None.

    The cap is tight: a far, nearly linear loss attains it.
    """
    return cfg.pseudo_step * check.nonnegative("grad_bound", grad_bound) * geometric_sum(cfg.pull, t)


def paper_drift_bound_sq(cfg: RoundConfig, grad_bound: float) -> float:
    """E‖theta^t - a‖^2 <= gamma_G^2 gamma_L^2 E^2 B^2 / lam^2, as printed (Lemma "Uniform within-task
    drift").

    Holds for anchored tasks, with E counted in steps. The printed proof bounds E‖.‖ and squares, which is
    the wrong direction of Jensen's inequality; A1 makes the bound sure on every path, so the square holds
    as well (`drift_radius`). It is claimed for every task; without an anchor, as in the text's first task,
    it does not hold: the distance then grows with t. Infinite for lam = 0 or without an anchor.
    """
    return drift_radius(cfg, grad_bound) ** 2


def drift_step(radius: float, server_lr: float, delta_norm: float, lam: float) -> float:
    """r' = (r + gamma_G ‖Delta‖) / (1 + lam): the triangle inequality applied to one server step."""
    return (radius + server_lr * delta_norm) / (1 + lam)


def drift_radius_from_deltas(
    server_lr: float | Sequence[float], delta_norms: Sequence[float], lam: float | Sequence[float]
) -> float:
    """r_t by r_{t+1} = (r_t + gamma_G ‖Delta^t‖) / (1 + lam), r_0 = 0; then ‖theta^t - a‖ <= r_t.

    Needs no assumption at all: whatever the clients do (momentum, Adam, unequal steps, malice), and for
    steps and lam that change from round to round, also adaptively. ``server_lr`` and ``lam`` may be given
    per round.
    """
    rounds = len(delta_norms)
    steps = _per_round("server_lr", server_lr, rounds)
    pulls = _per_round("lam", lam, rounds)
    radius = 0.0
    for step, norm, pull in zip(steps, delta_norms, pulls, strict=True):
        radius = drift_step(radius, step, check.nonnegative("delta_norms", norm), pull)
    return radius


def drift_radius_clip(server_lr: float, clip: float, lam: float) -> float:
    """‖theta^t - a‖ <= gamma_G C / lam when every client delta has norm at most C (clipped by the server).

    Proposition D: for any lam_t > 0 and any deltas, ‖theta^t - a‖ <= sup_{tau<t} gamma_G ‖Delta^tau‖ /
    lam_tau. Proof: let S be the supremum; ‖d‖ <= S and gamma_G ‖Delta‖ <= lam S give ‖d'‖ <= (S + lam S)/(1
    + lam) = S.
    """
    return check.nonnegative("server_lr", server_lr) * check.nonnegative("clip", clip) / check.positive("lam", lam)


def special_c_drift_radius(client_lr: float, grad_bound: float, lam: float, server_lr: float = 1.0) -> float:
    """‖theta^t - a‖ <= gamma_L B / (2 lam) for SPECIAL-C, whose clients take the proximal step, if gamma_G
    <= 1.

    Its proximal term lam‖theta - a‖^2 carries a factor 2 and acts at every step, so the cap does not grow
    with E: at equal lam SPECIAL-C is anchored 2 E gamma_G times harder than SPECIAL.
    """
    if not 0 < check.finite("server_lr", server_lr) <= 1:
        raise ValueError(f"server_lr must lie in (0, 1] for this bound, got {server_lr!r}")
    return (
        check.positive("client_lr", client_lr)
        * check.nonnegative("grad_bound", grad_bound)
        / (2 * check.positive("lam", lam))
    )


def geometric_limit(
    anchor: ArrayLike, delta: ArrayLike, server_lr: float, lam: float, t: int | None = None
) -> NDArray[np.float64]:
    """theta^t = a + gamma_G Delta (1 - (1+lam)^-t) / lam for a constant Delta; a + gamma_G Delta / lam for
    t = None.

    So theta - a is an exponential moving average, with beta = 1/(1+lam), of gamma_G Delta / lam.
    """
    if t is None:
        check.positive("lam", lam)
    weight = geometric_sum(check.nonnegative("lam", lam), t)
    start = np.asarray(anchor, dtype=np.float64)
    return start + check.finite("server_lr", server_lr) * weight * np.asarray(delta, dtype=np.float64)


def half_life(lam: float) -> float:
    """ln 2 / ln(1 + lam): rounds after which a delta's weight has halved; infinite for lam = 0."""
    pull = check.nonnegative("lam", lam)
    return math.log(2) / math.log1p(pull) if pull > 0 else math.inf


def _per_round(name: str, value: float | Sequence[float], rounds: int) -> list[float]:
    values = [value] * rounds if isinstance(value, int | float) else list(value)
    if len(values) != rounds:
        raise ValueError(f"{name} must have one value per round ({rounds}), got {len(values)}")
    return [check.nonnegative(name, entry) for entry in values]
