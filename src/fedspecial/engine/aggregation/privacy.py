"""Central differential privacy: clip every update, add Gaussian noise to their sum, and count ε over rounds and tasks.

    Δ̄ = (Σ_m Δ_m·min(1, C/‖Δ_m‖) + n) / N          n ~ Normal(0, (z·C)²) in every coordinate

C: `dp_clip` · z: `dp_noise_multiplier` · N: the planned number of clients of a round, also when fewer of them answer.
‖Δ_m‖ is taken over everything that is averaged: all vectors of the update together, BatchNorm statistics included.
What the server makes of Δ̄ afterwards (its optimizer, SPECIAL's anchor with a fixed λ) is post-processing and costs
nothing.

The unit of protection is a client with all its data. Two federations are neighbours if one client has other data; the
sum then changes by at most 2C, so that the noise is z/2 in units of this sensitivity. ε is the smaller one of

    known:    Gaussian noise on every release, exactly composed, for an observer who knows who took part
    sampled:  N of M clients drawn without replacement (Wang, Balle and Kasiviswanathan, AISTATS 2019, Theorem 27), in
              Rényi divergence, for an observer who does not

Both from the package dp-accounting. Every noisy sum is a release and is charged, whether or not it is used.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedspecial.config import Config
from fedspecial.core.events import of_kind
from fedspecial.core.messages import Tensors
from fedspecial.core.privacy import PrivacyCharged
from fedspecial.core.streams import stream
from fedspecial.engine.aggregation.mean import RunningMean
from fedspecial.errors import InputError

Noise = Callable[[int, int, str, int], NDArray[np.float64]]
"""(task, round, name of the vector, length) → standard normal numbers."""
Sample = Callable[[int, int], list[int]]
"""(M, N) → N of M clients in ascending order."""

_ORDERS = (1.1, 1.25, 1.5, 1.75, *range(2, 33), *range(36, 65, 4), 80, 96, 128)
"""Orders of the Rényi divergence; every one of them gives a valid ε, and the smallest counts."""
_SUMMANDS = 4
_HOPELESS = 1e4


class Charge(NamedTuple):
    """What one release costs: it depends on the noise and on how many of how many clients were sampled."""

    noise_multiplier: float
    sampled: int
    clients: int


class Epsilon(NamedTuple):
    """sampled: who took part is secret · known: it is not"""

    sampled: float
    known: float


def clip_factor(norm: float, limit: float) -> float:
    """min(1, C/‖Δ‖), by which an update is multiplied."""
    return 1.0 if norm <= limit else limit / norm


def update_norm(deltas: Tensors) -> float:
    """‖Δ‖ over all vectors of an update, in float64."""
    squares = (float(torch.linalg.vector_norm(d.cpu(), dtype=torch.float64)) ** 2 for d in deltas.values())
    return math.sqrt(math.fsum(squares))


def epsilon(charges: Mapping[Charge, int], delta: float) -> Epsilon:
    """ε of all releases together."""
    from dp_accounting.rdp import compute_epsilon

    charges = {charge: number for charge, number in charges.items() if number}
    if not charges:
        return Epsilon(0.0, 0.0)
    # Independent Gaussian releases are one Gaussian release: squares of sensitivity over noise add up.
    total = math.fsum(number * (2 / charge.noise_multiplier) ** 2 for charge, number in charges.items())
    known = _gaussian_epsilon(total, delta)
    if all(charge.sampled == charge.clients for charge in charges):
        return Epsilon(known, known)
    rdp = sum((number * _rdp(charge) for charge, number in charges.items()), np.zeros(len(_ORDERS)))
    return Epsilon(min(known, float(compute_epsilon(_ORDERS, rdp, delta)[0])), known)


def _gaussian_epsilon(total: float, delta: float) -> float:
    """ε of one Gaussian release whose (sensitivity/noise)² is `total`."""
    from dp_accounting import get_epsilon_gaussian

    if total > _HOPELESS:  # the exact formula over- and underflows; this is its bound by concentrated privacy
        return total / 2 + math.sqrt(2 * total * math.log(1 / delta))
    return float(get_epsilon_gaussian(1 / math.sqrt(total), delta))


@lru_cache(maxsize=256)
def _rdp(charge: Charge) -> NDArray[np.float64]:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(_ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    release = dp_accounting.GaussianDpEvent(charge.noise_multiplier / 2)
    with np.errstate(all="ignore"):
        accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(charge.clients, charge.sampled, release))
    return np.nan_to_num(np.asarray(accountant.rdp, dtype=np.float64), nan=np.inf, posinf=np.inf)


@lru_cache(maxsize=16)
def noise_for(target: float, delta: float, releases: int, sampled: int, clients: int) -> float:
    """The smallest noise multiplier, to 0.1 %, with which this many releases cost at most the target ε."""

    def fits(noise: float) -> bool:
        return epsilon({Charge(noise, sampled, clients): releases}, delta).sampled <= target

    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
        if high > 1e9:
            raise InputError(f"dp_epsilon={target:g}: no amount of noise reaches it with dp_delta={delta:g}")
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def seeded_noise(seed: int) -> Noise:
    """Noise of a simulation, from a named stream: reproducible, so it protects nobody from those who know the seed."""
    return lambda task, round, name, size: stream(seed, "privacy-noise", task, round, name).standard_normal(size)


def system_noise(task: int, round: int, name: str, size: int) -> NDArray[np.float64]:
    """Noise from the operating system's generator (Box–Muller), for a real federation.

    A sum of four numbers divided by two, so that the gaps between floating-point numbers do not tell what was added
    (Holohan and Braghin, 2021).
    """
    pairs = (size * _SUMMANDS + 1) // 2
    uniform = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64) >> np.uint64(11)
    radius = np.sqrt(-2 * np.log((uniform[:pairs] + 1.0) * 2.0**-53))
    angle = 2 * np.pi * (uniform[pairs:] * 2.0**-53)
    normal = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[: size * _SUMMANDS]
    return np.asarray(normal.reshape(_SUMMANDS, size).sum(axis=0) / math.sqrt(_SUMMANDS))


def system_sample(clients: int, count: int) -> list[int]:
    """N of M clients from the operating system's generator, so that nobody can predict who takes part."""
    return sorted(random.SystemRandom().sample(range(clients), count))


@dataclass
class PrivateAggregation:
    """Clipping, noise and accounting of one run.

    noise_multiplier: z of the next release
    budget:           the largest ε, None if the noise is given instead
    charges:          all releases so far
    sample:           replaces the seeded choice of clients; None in a simulation
    """

    clip: float
    noise_multiplier: float
    delta: float
    budget: float | None
    noise: Noise
    charges: Counter[Charge] = field(default_factory=Counter)
    sample: Sample | None = None

    def factor(self, deltas: Tensors) -> float:
        return clip_factor(update_norm(deltas), self.clip)

    def check_budget(self, sampled: int, clients: int, rounds: int = 1) -> None:
        """Stop the run before releases that would exceed the budget."""
        if self.budget is None:
            return
        after = epsilon(self.charges + Counter({Charge(self.noise_multiplier, sampled, clients): rounds}), self.delta)
        if after.sampled > self.budget:
            further = "another one" if rounds == 1 else f"another {rounds}"
            raise InputError(
                f"dp_epsilon={self.budget:g}: the privacy budget is used up after {self.charges.total()} rounds; "
                f"{further} would give ε = {after.sampled:.4g}; the run stops"
            )

    def charge(self, task: int, round: int, sampled: int, clients: int) -> PrivacyCharged:
        """Count one release; to be recorded before the noisy sum is used."""
        self.charges[Charge(self.noise_multiplier, sampled, clients)] += 1
        spent = epsilon(self.charges, self.delta)
        return PrivacyCharged(
            task,
            round,
            spent.sampled,
            spent.known,
            self.delta,
            self.noise_multiplier,
            self.clip,
            sampled,
            clients,
            self.charges.total(),
            simulated=self.sample is None,
        )

    def add_noise(self, mean: RunningMean, task: int, round: int) -> None:
        """Add the noise to the sums that `mean` divides."""
        deviation = self.noise_multiplier * self.clip
        for name, total in mean.sums.items():
            total.add_(torch.from_numpy(self.noise(task, round, name, total.numel())).to(total.device), alpha=deviation)


def private_aggregation(
    config: Config, tasks: int, clients: int, events: Iterable[Mapping[str, Any]], *, real: bool = False
) -> PrivateAggregation | None:
    """The mechanism of a run, None without `dp_clip`.

    events: earlier releases, as events or as lines of an audit log; a run keeps the noise with which it began
    real:   the noise protects somebody, so it comes from the operating system
    """
    if config.dp_clip is None:
        return None
    past = of_kind((dict(event) for event in events), PrivacyCharged.event)
    noise = config.dp_noise_multiplier
    if noise is None and past:
        noise = float(past[0]["noise_multiplier"])
    if noise is None:
        assert config.dp_epsilon is not None
        releases = tasks * config.rounds
        noise = noise_for(config.dp_epsilon, config.dp_delta, releases, config.clients_per_round, clients)
    charges = Counter(Charge(e["noise_multiplier"], e["sampled"], e["clients"]) for e in past)
    draw = system_noise if real else seeded_noise(config.seed)
    sample = system_sample if real else None
    return PrivateAggregation(config.dp_clip, noise, config.dp_delta, config.dp_epsilon, draw, charges, sample)
