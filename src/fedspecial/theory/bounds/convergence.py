"""SPECIAL as SGD on a surrogate objective: what its rounds optimise, and how fast.

With ghat = -Delta / (gamma_L E) one round is theta' = theta - eta (ghat + mu (theta - a)), where
eta = gE / (1+lam) and mu = lam / gE, gE = gamma_G gamma_L E. That is a step on

    Phi(theta) = f_K(theta) + (mu/2) ‖theta - a‖^2.

The identity is exact for any E. Only for E = 1 is ghat an unbiased estimate of the gradient of f_K at theta,
so only then is a round a step of SGD on Phi. For E > 1 ghat is a mean of gradients along the clients' paths;
its bias is the term ``local_bias`` of Theorem S. Without noise, with E = 1 and N = M, the rounds converge to
the minimiser of Phi. That is not the minimiser of the paper's Eq. 3, f_K + lam ‖. - a‖^2. The strength that
keeps its meaning when other settings change is mu, not lam.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedspecial.theory import validation
from fedspecial.theory.bounds.drift import drift_radius
from fedspecial.theory.constants import Constants, RoundConfig


class Surrogate(NamedTuple):
    """Step size eta and anchor strength mu of the equivalent SGD on the surrogate."""

    eta: float
    mu: float


@dataclass(frozen=True)
class SurrogateTerms:
    """The three terms of Theorem S, and their sum."""

    optimisation: float
    local_bias: float
    variance: float

    @property
    def total(self) -> float:
        """The bound on the mean squared gradient of Phi."""
        return self.optimisation + self.local_bias + self.variance


def surrogate(cfg: RoundConfig) -> Surrogate:
    """(eta, mu) = (gE / (1+lam), lam / gE) with gE = gamma_G gamma_L E."""
    return Surrogate(eta=cfg.pseudo_step / (1 + cfg.effective_lam), mu=cfg.effective_lam / cfg.pseudo_step)


def lam_for_mu(mu: float, cfg: RoundConfig) -> float:
    """lam = mu gE: the lam that keeps the same surrogate when learning rates or local steps change."""
    return validation.nonnegative("mu", mu) * cfg.pseudo_step


def surrogate_bound(cfg: RoundConfig, consts: Constants, staleness: float | None = None) -> SurrogateTerms:
    """(1/T) sum_t E‖grad Phi(theta^t)‖^2 <= 2 (1+lam) gap / (gE T) + L^2 b^2 + (gE L + lam)/(1+lam) * V,
    Theorem S:

        b = gamma_L B (E-1)/2,    D = gamma_L^2 B^2 (E-1)(2E-1)/6,
        V = 2 sigma_L^2 / (N E) + 4 s (sigma_G^2 + L^2 D) + 2 L^2 D / N.

    Needs A1 to A5, gE L <= 1 (`check_conditions(..., "surrogate")`) and gap = f_K(a) - inf f_K. Any lam >= 0; lam = 0
    is FedAvg. Proof: Phi is (L+mu)-smooth and (L+mu) eta = (gE L + lam)/(1+lam) <= 1 iff gE L <= 1; the
    descent lemma with -<x, x+c> = -(‖x‖^2 + ‖x+c‖^2 - ‖c‖^2)/2 and E‖v‖^2 = ‖E v‖^2 + V leaves the bias c,
    at most the mean over e of L e gamma_L B, and the variance of noise, of client sampling and of the local
    paths. Phi(a) = f_K(a).

    ``staleness``: the largest age of a delta in rounds (Theorem S-async; inf is allowed if lam > 0). A
    stale model differs from the current one by at most S = min(2R, age * kappa), with
    kappa = (gamma_G C + lam R)/(1+lam) and C = gamma_L E B, because all versions are in the ball of radius R.
    Then b becomes b + S and sqrt(D) becomes sqrt(D) + S (Minkowski; at most the 2(D + S^2) of the usual form,
    and equal to D without delay). Assumes staleness weights of 1, delays independent of the data, and uniform
    arrivals.
    """
    steps, smooth, bound = cfg.local_steps, consts.smoothness, consts.grad_bound
    lam, pseudo = cfg.effective_lam, cfg.pseudo_step
    reach = cfg.client_lr * bound
    stale = 0.0 if staleness is None else _stale_distance(cfg, bound, staleness)
    bias = reach * (steps - 1) / 2 + stale
    path = reach * math.sqrt((steps - 1) * (2 * steps - 1) / 6) + stale
    local = 2 * consts.need("sigma_local") ** 2 / (cfg.clients_per_round * steps)
    sampled = 4 * cfg.sampling_factor * (consts.need("sigma_client") ** 2 + (smooth * path) ** 2)
    variance = local + sampled + 2 * (smooth * path) ** 2 / cfg.clients_per_round
    return SurrogateTerms(
        optimisation=2 * (1 + lam) * consts.need("gap") / (pseudo * cfg.rounds),
        local_bias=(smooth * bias) ** 2,
        variance=(pseudo * smooth + lam) / (1 + lam) * variance,
    )


def task_uniform_bound(
    surrogate_grad_norm: float, cfg: RoundConfig, consts: Constants, radius: float, convex: bool = False
) -> float:
    """‖grad f_{1:K}(theta)‖ <= ‖grad Phi(theta)‖ + G + omega ‖theta - a‖, Theorem 2'.

    omega = mu + (K-1) L, or max{mu, (K-1) L - mu} if the old losses are convex (then mu = (K-1) L / 2 is
    best). The last two terms are the anchor mismatch, which is zero iff grad F(theta) = mu (theta - a).
    SPECIAL approaches a stationary point of Phi. It approaches a stationary point of all tasks only to the
    extent that the anchor represents the earlier tasks.
    """
    mu, curvature = surrogate(cfg).mu, cfg.num_old_tasks * consts.smoothness
    omega = max(mu, curvature - mu) if convex else mu + curvature
    here = validation.nonnegative("surrogate_grad_norm", surrogate_grad_norm)
    return here + consts.need("old_grad_norm") + omega * validation.nonnegative("radius", radius)


def contraction_factor(cfg: RoundConfig, smoothness: float) -> float:
    """(1 + gamma_G ((1 + gamma_L L)^E - 1)) / (1 + lam): Lipschitz constant of one noise-free round,
    N = M.

    Below 1 the round is a contraction and its limit is unique. For convex losses with E = 1 and
    gamma_G gamma_L <= 2/L the factor is 1/(1+lam). Infinite where the power overflows.
    """
    exponent = cfg.local_steps * math.log1p(cfg.client_lr * validation.positive("smoothness", smoothness))
    growth = math.expm1(exponent) if exponent < 700 else math.inf
    return (1 + cfg.server_lr * growth) / (1 + cfg.effective_lam)


def quadratic_stationary(
    cfg: RoundConfig, centers: ArrayLike, anchor: ArrayLike, sigma_local: float
) -> tuple[NDArray[np.float64], float]:
    """Mean and total variance of the stationary distribution for f_m = ‖theta - c_m‖^2 / 2, in closed form.

        q = 1 - (1 - gamma_L)^E,    mean = (gamma_G q cbar + lam a) / (gamma_G q + lam),
        variance = rho^2 gamma_G^2 (q^2 s S + v/N) / (1 - rho^2 (1 - gamma_G q)^2),

    S is the mean of ‖c_m - cbar‖^2 over clients, and v = gamma_L^2 sigma_L^2 sum_{e<E} (1 - gamma_L)^(2e) is the
    noise of one client's delta. ``centers`` is (M, d). Needs |1 - gamma_G q| < 1 + lam; otherwise there is no
    stationary distribution.
    """
    points = np.asarray(centers, dtype=np.float64)
    if points.ndim != 2 or len(points) != cfg.num_clients:
        raise ValueError(f"centers must have {cfg.num_clients} rows, got an array of shape {points.shape}")
    lam, keep = cfg.effective_lam, 1 - cfg.client_lr
    q = 1 - keep**cfg.local_steps
    contraction = (1 - cfg.server_lr * q) / (1 + lam)
    if not abs(contraction) < 1:
        raise ValueError(f"server_lr must give a stable round (|factor| < 1), got a factor of {contraction!r}")
    mean = points.mean(axis=0)
    spread = float(((points - mean) ** 2).sum(axis=1).mean())
    noise = (cfg.client_lr * validation.nonnegative("sigma_local", sigma_local)) ** 2
    noise *= sum(keep ** (2 * e) for e in range(cfg.local_steps))
    weight = cfg.server_lr * q
    center = (weight * mean + lam * np.asarray(anchor, dtype=np.float64)) / (weight + lam)
    per_round = q**2 * cfg.sampling_factor * spread + noise / cfg.clients_per_round
    return center, (cfg.server_lr / (1 + lam)) ** 2 * per_round / (1 - contraction**2)


def _stale_distance(cfg: RoundConfig, grad_bound: float, staleness: float) -> float:
    """S = min(2R, age * kappa); kappa bounds one server step."""
    if not staleness >= 0:
        raise ValueError(f"staleness must be at least 0, got {staleness!r}")
    if staleness == 0:
        return 0.0
    push = cfg.pseudo_step * grad_bound
    step = 2 * push / (1 + cfg.effective_lam) if cfg.effective_lam > 0 else push  # lam R = gE B
    reach = min(2 * drift_radius(cfg, grad_bound), staleness * step)
    if math.isinf(reach):
        raise ValueError(f"staleness must be finite without an anchor, got {staleness!r}")
    return reach
