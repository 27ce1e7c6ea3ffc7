"""The paper's theorems exactly as printed, with the errors we found in them.

Each docstring says what is true of the statement and names the corrected one. E is the number of local steps,
as in the paper's proofs. Every statement needs K >= 2 and lam > 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from fedspecial.theory import validation
from fedspecial.theory.constants import Constants, RoundConfig


def paper_bkt_client_lr_max(cfg: RoundConfig, consts: Constants, t: int | None = None) -> float:
    """gamma_L <= 2 eps G / (B L E t sqrt(M E / (lam^2 + 2 lam))), the client learning rate of
    Theorem 1 (t = T by default).

    The learning rate falls like 1/t, so the claim for round t is about a run whose learning rate was chosen
    for that t. If the model fits the old tasks exactly (G = 0), no positive learning rate is allowed.
    """
    rounds = validation.count("t", cfg.rounds if t is None else t)
    memory = math.sqrt(cfg.num_clients * cfg.local_steps / _anchored_square(cfg))
    numerator = 2 * consts.need("alignment") * consts.need("old_grad_norm")
    return numerator / (consts.grad_bound * consts.smoothness * cfg.local_steps * rounds * memory)


def paper_bkt_server_lr_max(cfg: RoundConfig) -> float:
    """gamma_G <= 1 / (sqrt(N) (K-1)), the server learning rate of Theorem 1.

    The paper's schedule gamma_G = 1/i violates this from the third task on for N = 4. The full-participation
    corollary requires 1 / (M (K-1)), which is stricter than its own slack needs.
    """
    return 1 / (math.sqrt(cfg.clients_per_round) * cfg.num_old_tasks)


def paper_bkt_slack(cfg: RoundConfig, consts: Constants, t: int | None = None) -> float:
    """E F(theta^t) <= F(a) + 2 eps^2 sigma_L^2 G^2 / ((K-1) t E M N L B^2), Theorem 1 (t = T by default).

    Holds after two corrections of the proof: the weights of the rounds are rho^(t-tau), and the quadratic
    term needs Cauchy-Schwarz over rounds and Jensen over clients in place of Lemma 3.7, because every round
    has its own sample of clients. It does not say that forgetting vanishes with t, N and M: the slack shrinks
    because the allowed learning rates shrink. At fixed learning rates the proven slack grows linearly in t,
    while the true increase grows and saturates. `bkt_slack` needs no condition on t, and its factor 1/N is
    due to averaging.
    """
    rounds = validation.count("t", cfg.rounds if t is None else t)
    numerator = 2 * (consts.need("alignment") * consts.need("sigma_local") * consts.need("old_grad_norm")) ** 2
    size = cfg.num_old_tasks * rounds * cfg.local_steps * cfg.num_clients * cfg.clients_per_round
    return numerator / (size * consts.smoothness * consts.grad_bound**2)


@dataclass(frozen=True)
class PsiTerms:
    """The terms of Psi in Theorem 2, each with the factor 2/(1 - 1/K), so that their sum is ``total``."""

    grad_bound: float  # K B^2
    drift: float  # (gamma_L E L / lam)^2 B^2
    old_gradient: float  # G^2
    local_drift: float  # 5 gamma_L^2 K E L^2 (sigma_L^2 + 6 E sigma_G^2)
    local_noise: float  # 3 gamma_G gamma_L L sigma_L^2 / (2 N (1+lam))
    task_shift: float  # (K-1)^2 E / K * 3 gamma_G gamma_L L sigma_T^2 / (2 (1+lam))
    sampling_client: float  # 12 s gamma_G gamma_L E K L sigma_G^2 / (1+lam)
    sampling_grad_bound: float  # 3 s gamma_G gamma_L E K L B^2 / (1+lam)
    sampling_local_drift: float  # 60 s gamma_G gamma_L^3 E^2 K L^3 (sigma_L^2 + 6 E sigma_G^2) / (1+lam)
    sampling_task_shift: float  # (K-1)^2 E / K * 12 s gamma_G gamma_L L sigma_T^2 / (1+lam)

    @property
    def total(self) -> float:
        """Psi."""
        return math.fsum(getattr(self, field.name) for field in fields(self))

    @property
    def sampling(self) -> float:
        """The terms that partial participation adds; 0 when N = M."""
        return math.fsum(getattr(self, f.name) for f in fields(self) if f.name.startswith("sampling"))


def paper_psi(cfg: RoundConfig, consts: Constants) -> PsiTerms:
    """Psi of Theorem 2, term by term, as printed.

    Psi alone exceeds `every_iterate_cap`, which every iterate satisfies without any optimisation: with c =
    2K/(K-1), weighted Cauchy-Schwarz gives (x+y+z)^2 <= (2 + 1/K)/c * (c x^2 + c y^2 + c K z^2), where (2 +
    1/K)/c = 1 - (K+1)/(2K^2) < 1; take x = G, y = gamma_L E L B / lam, z = B. Hence clients that do
    gradient ascent satisfy the theorem too. Since Psi >= 2 K^2 B^2 / (K-1) >= 8 B^2, the theorem is weaker than
    A1 alone for K = 2.

    Errors in the printed proof: K copies of the same noise add up to K^2, not K, so ``local_noise`` would need
    a factor K; the condition c12 (see `paper_c12`) is used but not implied; and the sampling terms in sigma_T
    and B are unnecessary, because what all clients have in common cancels in the sampling variance.
    """
    tasks, s = cfg.task_index, cfg.sampling_factor
    _anchored_square(cfg)
    factor = 2 / (1 - 1 / (cfg.num_old_tasks + 1))
    bound, smooth, steps = consts.grad_bound, consts.smoothness, cfg.local_steps
    local, client = consts.need("sigma_local") ** 2, consts.need("sigma_client") ** 2
    shift = (tasks - 1) ** 2 * steps / tasks * consts.need("sigma_task") ** 2
    step = cfg.step * smooth / (1 + cfg.lam)  # gamma_G gamma_L L / (1 + lam), common to most terms
    reach = (cfg.client_lr * steps * smooth) ** 2
    spread = local + 6 * steps * client
    return PsiTerms(
        grad_bound=factor * tasks * bound**2,
        drift=factor * reach * bound**2 / cfg.lam**2,
        old_gradient=factor * consts.need("old_grad_norm") ** 2,
        local_drift=factor * 5 * reach * tasks / steps * spread,
        local_noise=factor * 3 * step * local / (2 * cfg.clients_per_round),
        task_shift=factor * 3 * step * shift / 2,
        sampling_client=factor * 12 * s * step * steps * tasks * client,
        sampling_grad_bound=factor * 3 * s * step * steps * tasks * bound**2,
        sampling_local_drift=factor * 60 * s * step * reach * tasks * spread,
        sampling_task_shift=factor * 12 * s * step * shift,
    )


def paper_convergence_gap_term(cfg: RoundConfig, consts: Constants) -> float:
    """2 (1+lam) (f0 - f*) / ((1 - 1/K) gamma_G gamma_L E T), the first term of Theorem 2; f is f_1 + ... +
    f_K."""
    share = 1 - 1 / (cfg.num_old_tasks + 1)
    return 2 * (1 + cfg.lam) * consts.need("gap") / (share * cfg.pseudo_step * cfg.rounds)


def paper_convergence_bound(cfg: RoundConfig, consts: Constants) -> float:
    """min_t E‖grad f_{1:K}(theta^t)‖^2 <= `paper_convergence_gap_term` + Psi, Theorem 2 as printed.

    True but vacuous: see `paper_psi`. `surrogate_bound` (Theorem S) replaces it.
    """
    return paper_convergence_gap_term(cfg, consts) + paper_psi(cfg, consts).total


def every_iterate_cap(cfg: RoundConfig, consts: Constants) -> float:
    """‖grad f_{1:K}(theta^t)‖^2 <= (G + (K-1) L R + B)^2 for every t, whatever the clients optimise.

    Needs A1, A2 and deltas of norm at most gamma_L E B. The old tasks' gradient moves by at most (K-1) L R
    within the drift radius R, the new task's is at most B. If gamma_G <= 1/(K-1) it is below Psi
    (`paper_psi`).
    """
    _anchored_square(cfg)
    radius = cfg.pseudo_step * consts.grad_bound / cfg.lam
    moved = cfg.num_old_tasks * consts.smoothness * radius
    return (consts.need("old_grad_norm") + moved + consts.grad_bound) ** 2


def paper_c12(cfg: RoundConfig, consts: Constants) -> float:
    """30 K (gamma_L L E)^2 + 3 s gamma_G gamma_L L (120 E^3 L^2 K gamma_L^2 + 4 E K) / (1+lam), which must
    be <= 1/2.

    The proof of Theorem 2 drops the term in ‖grad f_K‖^2. This needs the condition, as the proof says at step
    (c12), but the theorem does not list it, and its own gamma_L = 1/(8EL) violates it for every K >= 2.
    Sufficient: for
    N = M, gamma_L <= 1/(E L sqrt(60 K)); for N < M, gamma_L <= 1/(E L sqrt(120 K)) and gamma_G gamma_L <=
    (1+lam)/(60 s E K L). The line after (c12) prints the last bracket with an extra factor M, which the
    displayed formula before it does not have. This function uses the displayed formula.
    """
    tasks, steps, smooth = cfg.task_index, cfg.local_steps, consts.smoothness
    reach = (cfg.client_lr * smooth * steps) ** 2
    sampled = 3 * cfg.sampling_factor * cfg.step * smooth / (1 + cfg.lam) * steps * tasks * (120 * reach + 4)
    return 30 * tasks * reach + sampled


def paper_rate_steps(cfg: RoundConfig, smoothness: float) -> tuple[float, float]:
    """(gamma_G, gamma_L) = (sqrt(N E) / ((K-1) lam L), lam / (sqrt(K T) E L)), the learning rates of
    Corollary 1.

    The corollary's rate O(sqrt(E/(N T))) does not follow; see `paper_rate_radius`. gamma_G has the unit of
    1/L, so the choice depends on the scale of the loss.
    """
    _anchored_square(cfg)
    curvature = validation.positive("smoothness", smoothness)
    server = math.sqrt(cfg.clients_per_round * cfg.local_steps) / (cfg.num_old_tasks * cfg.lam * curvature)
    return server, cfg.lam / (math.sqrt(cfg.task_index * cfg.rounds) * cfg.local_steps * curvature)


def paper_rate_radius(cfg: RoundConfig, consts: Constants) -> float:
    """R_T = sqrt(N E) B / ((K-1) lam L^2 sqrt(K T)): the drift radius with the learning rates
    of Corollary 1, which tends to 0.

    So min_t ‖grad f_{1:K}(theta^t)‖ >= ‖grad f_{1:K}(a)‖ - K L R_T, which tends to the gradient norm at the
    anchor. The model hardly moves, so a gradient that is not zero at the anchor does not vanish during the
    run. By the paper's own drift lemma, this contradicts the corollary.
    """
    server, client = paper_rate_steps(cfg, consts.smoothness)
    return server * client * cfg.local_steps * consts.grad_bound / cfg.lam


def _anchored_square(cfg: RoundConfig) -> float:
    """lam^2 + 2 lam; an error if the task has no anchor."""
    if not cfg.anchored:
        raise ValueError(f"anchored must be True for this statement, got {cfg.anchored!r}")
    return validation.positive("lam", cfg.lam) * (cfg.lam + 2)
