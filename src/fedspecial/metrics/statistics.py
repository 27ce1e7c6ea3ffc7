"""When a difference between methods decides a claim: paired differences, t-intervals, and Holm's correction.

With the same seed all methods run on the same federation, so a comparison is a list of differences d_s, one for each
seed s = 1, ..., n, positive where they support the claim. With the mean d̄ and the sample standard deviation

    σ² = Σ_s (d_s − d̄)² / (n − 1)

the confidence interval of the mean difference at level 1 − a, and the two-sided p-value of "no difference", are

    d̄ ± t_{n−1}(1 − a/2) · σ / √n,        p = 2 · P(t_{n−1} ≥ |d̄| · √n / σ)

where t_{n−1} is Student's distribution with n − 1 degrees of freedom. A claim that makes m comparisons, such as
"better than each of eight methods", gets Holm's correction: with the p-values in ascending order p_(1) ≤ ... ≤ p_(m),
the k-th is significant if p_(j) ≤ a / (m − j + 1) for all j ≤ k. If no method differs from another, the probability
that any of the m comparisons is significant, in either direction, is then at most a, however the comparisons depend
on each other.

Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = 0.05
"""The probability a of a verdict where nothing differs; the same for "holds" and "does not hold" together."""
MIN_SEEDS = 5
"""A comparison with fewer seeds decides nothing."""
ROUNDING = 1e-9
"""A mean difference up to this is zero: subtracting equal numbers may leave a rounding error with every seed."""


@dataclass(frozen=True)
class Interval:
    """The mean of differences and its confidence interval."""

    mean: float
    low: float
    high: float


def t_interval(differences: Sequence[float], level: float = LEVEL) -> Interval | None:
    """The confidence interval of the mean at level 1 − `level`; None for fewer than two differences."""
    from scipy.special import stdtrit

    n = len(differences)
    if n < 2:
        return None
    mean = fmean(differences)
    half = float(stdtrit(n - 1, 1 - level / 2)) * stdev(differences) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def p_value(differences: Sequence[float]) -> float:
    """The two-sided p-value of "the mean difference is zero"; 1 for fewer than two differences."""
    from scipy.special import stdtr

    n = len(differences)
    mean = fmean(differences) if n else 0.0
    if n < 2 or abs(mean) <= ROUNDING:
        return 1.0
    deviation = stdev(differences)
    return 0.0 if deviation == 0 else float(2 * stdtr(n - 1, -abs(mean) * math.sqrt(n) / deviation))


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Whether each p-value is significant after Holm's correction, in the order given."""
    significant = [False] * len(p_values)
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        if p_values[at] > level / (len(p_values) - rank):
            break
        significant[at] = True
    return significant


def directions(comparisons: Sequence[Sequence[float]], level: float = LEVEL) -> list[int]:
    """For each comparison of a claim 1 or −1 if its mean is significantly above or below zero, otherwise 0.

    A comparison with fewer than `MIN_SEEDS` seeds is 0, and counts in the correction.
    """
    p_values = [p_value(d) if len(d) >= MIN_SEEDS else 1.0 for d in comparisons]
    significant = holm(p_values, level)
    return [0 if not found else 1 if fmean(d) > 0 else -1 for d, found in zip(comparisons, significant, strict=True)]
