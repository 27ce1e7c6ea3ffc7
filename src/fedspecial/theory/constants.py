"""The two inputs of every bound: the settings of a round and the constants of the problem.

The assumptions, and the name of the constant that each of them introduces:

A1 ``grad_bound``   every stochastic gradient, of every task and client, everywhere, has norm at most B.
A2 ``smoothness``   every client loss of every task is L-smooth.
A3                  stochastic gradients are unbiased.
A4 ``sigma_local``  their variance is at most sigma_L^2.
A5 ``sigma_client`` at the global iterates a client's gradient is within sigma_G of its task's gradient.
A6 ``sigma_task``   gradients of two tasks at one point differ by at most sigma_T.

A1 implies A4 to A6 with sigma_L <= B, sigma_G <= 2B(1 - 1/M) and sigma_T <= 2B, so these refine A1 and
are not independent of it (`Constants.completed`). A quadratic loss on an unbounded domain violates A1.
Logistic losses with bounded inputs, pseudo-Huber losses, Welsch losses and clipped gradients satisfy it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedspecial.theory import validation


def local_steps(num_samples: int, batch_size: int, epochs: int, drop_last: bool = False) -> int:
    """E = epochs * ceil(samples / batch), or floor with ``drop_last``: SGD steps of one client in one round.

    The bounds count steps, never epochs. The paper calls E "local epochs", but its proofs count steps: with 5
    epochs of 10 batches, its bound with E = 5 is exceeded tenfold, while the bound with E = 50 holds.

    >>> local_steps(100, 32, 5)
    20
    """
    samples = validation.count("num_samples", num_samples)
    batch = validation.count("batch_size", batch_size)
    passes = validation.count("epochs", epochs)
    per_epoch = samples // batch if drop_last else -(-samples // batch)
    if per_epoch == 0:
        raise ValueError(f"batch_size must be at most num_samples={samples} with drop_last, got {batch}")
    return passes * per_epoch


@dataclass(frozen=True)
class RoundConfig:
    """The settings of a round of SPECIAL, with the paper's symbols:

    ``num_clients`` M, ``clients_per_round`` N (uniform, without replacement), ``local_steps`` E (SGD steps
    per client and round, never epochs), ``rounds`` T, ``task_index`` K (1-based), ``server_lr`` gamma_G,
    ``client_lr`` gamma_L, ``lam`` lambda. ``anchored=False`` is a first task, which has no anchor.
    """

    num_clients: int
    clients_per_round: int
    local_steps: int
    rounds: int
    task_index: int
    server_lr: float
    client_lr: float
    lam: float
    anchored: bool = True

    def __post_init__(self) -> None:
        for name in ("num_clients", "clients_per_round", "local_steps", "rounds", "task_index"):
            validation.count(name, getattr(self, name))
        if self.clients_per_round > self.num_clients:
            raise ValueError(
                f"clients_per_round must be at most num_clients={self.num_clients}, got {self.clients_per_round}"
            )
        validation.positive("server_lr", self.server_lr)
        validation.positive("client_lr", self.client_lr)
        validation.nonnegative("lam", self.lam)

    @property
    def step(self) -> float:
        """gamma_G * gamma_L."""
        return self.server_lr * self.client_lr

    @property
    def pseudo_step(self) -> float:
        """gE = gamma_G * gamma_L * E: how far a gradient of norm 1 moves the server in one round."""
        return self.step * self.local_steps

    @property
    def effective_lam(self) -> float:
        """lambda if there is an anchor, otherwise 0 (the round is then one of FedAvg)."""
        return self.lam if self.anchored else 0.0

    @property
    def sampling_factor(self) -> float:
        """s = (M - N) / (N (M - 1)), the finite-population factor; 0 when all clients take part."""
        if self.clients_per_round == self.num_clients:
            return 0.0
        return (self.num_clients - self.clients_per_round) / (self.clients_per_round * (self.num_clients - 1))

    @property
    def num_old_tasks(self) -> int:
        """K - 1. An error for the first task, because statements about earlier tasks need at least one."""
        if self.task_index < 2:
            raise ValueError(
                f"task_index must be at least 2 for a statement about earlier tasks, got {self.task_index}"
            )
        return self.task_index - 1


@dataclass(frozen=True)
class Constants:
    """The constants of the problem. None means "not known"; an unknown constant is never guessed.

    ``alignment`` is epsilon, a lower bound of the cosine between the gradient of the earlier tasks at the
    anchor and every client's gradient at every local iterate. ``old_grad_norm`` is G, the norm of the
    gradient of the sum F = f_1 + ... + f_{K-1} at the anchor. ``gap`` is the loss at the anchor minus its
    infimum: of f_K in Theorem S, of f_1 + ... + f_K in the paper's convergence bound.
    """

    grad_bound: float
    smoothness: float
    sigma_local: float | None = None
    sigma_client: float | None = None
    sigma_task: float | None = None
    alignment: float | None = None
    old_grad_norm: float | None = None
    gap: float | None = None

    def __post_init__(self) -> None:
        validation.positive("grad_bound", self.grad_bound)
        validation.positive("smoothness", self.smoothness)
        for name in ("sigma_local", "sigma_client", "sigma_task", "old_grad_norm", "gap"):
            if getattr(self, name) is not None:
                validation.nonnegative(name, getattr(self, name))
        if self.alignment is not None:
            validation.cosine("alignment", self.alignment)

    def completed(self, num_clients: int | None = None) -> Constants:
        """Fill unknown deviations with the values that ``grad_bound`` alone implies: B, 2B(1 - 1/M) and 2B.

        For the client term: the gradient of client m minus the mean is (1/M) sum_n (g_m - g_n), which has M - 1
        nonzero terms of norm at most 2B. Without ``num_clients`` the factor 1 - 1/M is omitted.
        """
        bound = self.grad_bound
        share = 1.0 if num_clients is None else 1 - 1 / validation.count("num_clients", num_clients)
        return replace(
            self,
            sigma_local=bound if self.sigma_local is None else self.sigma_local,
            sigma_client=2 * bound * share if self.sigma_client is None else self.sigma_client,
            sigma_task=2 * bound if self.sigma_task is None else self.sigma_task,
        )

    def need(self, name: str) -> float:
        """Return the constant ``name``; an error if it is not known."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{name} is needed for this bound, got None")
        return float(value)


def geometric_sum(lam: float, t: int | None) -> float:
    """W_t = rho + ... + rho^t with rho = 1/(1+lam): (1 - rho^t)/lam, t at lam = 0, 1/lam (or inf) for t =
    None."""
    if t is None:
        return 1 / lam if lam > 0 else math.inf
    rounds = validation.count("t", t, low=0)
    return -math.expm1(-rounds * math.log1p(lam)) / lam if lam > 0 else float(rounds)


def geometric_square_sum(lam: float, t: int | None) -> float:
    """rho^2 + ... + rho^(2t): (1 - rho^(2t))/(lam^2 + 2 lam), t at lam = 0, the limit for None."""
    if t is None:
        return 1 / (lam * (lam + 2)) if lam > 0 else math.inf
    rounds = validation.count("t", t, low=0)
    if lam == 0:
        return float(rounds)
    return -math.expm1(-2 * rounds * math.log1p(lam)) / (lam * (lam + 2))
