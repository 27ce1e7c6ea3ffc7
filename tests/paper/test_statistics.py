"""Intervals and corrections by hand, and how often a verdict is wrong where nothing differs."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest
from scipy.stats import binom

from fedspecial.metrics.statistics import LEVEL, MIN_SEEDS, directions, holm, p_value, t_interval
from fedspecial.paper.claims.base import FAILS, HOLDS, Rule
from fedspecial.paper.claims.methods import Best, Better
from fedspecial.paper.claims.sweeps import BetterSomewhere, NearBest, Peaks, Rises
from fedspecial.paper.grid import SEEDS
from fedspecial.paper.registry import find
from fedspecial.report.comparison import MeanStd

FIVE = [1.0, 2.0, 3.0, 4.0, 5.0]
"""Mean 3, sample standard deviation √(10/4) = 1.5811; the population's would be √2 = 1.4142."""


def test_the_t_interval_by_hand() -> None:
    found = t_interval(FIVE)
    half = 2.7764451 * sqrt(10 / 4) / sqrt(5)  # t_4(0.975) from a table
    assert (found.mean, found.low, found.high) == pytest.approx((3, 3 - half, 3 + half), rel=1e-7)
    assert t_interval([1.0]) is None


def test_the_standard_deviation_is_that_of_a_sample() -> None:
    assert MeanStd.of(FIVE).std == pytest.approx(sqrt(10 / 4), rel=1e-12)
    assert MeanStd.of([1.0, 3.0]).std == pytest.approx(sqrt(2), rel=1e-12)


def test_the_p_value_by_hand() -> None:
    """With four degrees of freedom, P(t ≥ x) = 1/2 − 3u/4 + u³/4 with u = x / √(4 + x²)."""
    x = 3 * sqrt(5) / sqrt(10 / 4)
    u = x / sqrt(4 + x * x)
    assert p_value(FIVE) == pytest.approx(2 * (0.5 - 0.75 * u + 0.25 * u**3), rel=1e-9)
    assert p_value([-d for d in FIVE]) == p_value(FIVE)
    assert p_value([0.0] * 5) == 1
    assert p_value([0.5] * 5) == 0, "the same difference with every seed"
    assert p_value([1e-15] * 5) == 1, "rounding of equal values is no difference"
    assert p_value([7.0]) == p_value([]) == 1


@pytest.mark.parametrize(
    ("p_values", "significant"),
    [
        ([0.04], [True]),
        ([0.06], [False]),
        ([0.03, 0.02], [True, True]),  # 0.02 ≤ 0.05/2, then 0.03 ≤ 0.05/1
        ([0.03, 0.04], [False, False]),  # 0.03 > 0.05/2
        ([0.024, 0.9, 0.001, 0.026], [False, False, True, False]),  # 0.001 ≤ 0.05/4, but 0.024 > 0.05/3
        ([0.012, 0.016, 0.024, 0.04], [True, True, True, True]),  # the limits are 0.0125, 0.0167, 0.025, 0.05
        ([0.04, 0.0126, 0.001, 0.02], [True, True, True, True]),
        ([0.013, 0.02, 0.03, 0.04], [False, False, False, False]),  # 0.013 > 0.05/4 stops at the first step
        ([], []),
    ],
)
def test_the_steps_of_holm_by_hand(p_values: list[float], significant: list[bool]) -> None:
    assert holm(p_values) == significant


def test_fewer_seeds_than_needed_give_no_direction_and_count_in_the_correction() -> None:
    clear_cut = [10.0, 10.1, 9.9, 10.2, 9.8]
    assert directions([clear_cut, [-d for d in clear_cut]]) == [1, -1]
    assert directions([clear_cut[: MIN_SEEDS - 1]]) == [0]
    t_of_3_5 = [3.5 / sqrt(2) + step for step in (-2, -1, 0, 1, 2)]  # p = 0.025
    assert directions([t_of_3_5]) == [1]
    assert directions([t_of_3_5, [], [], []]) == [0, 0, 0, 0]


def test_studies_have_enough_seeds_and_keep_those_of_a_later_confirmation_unused() -> None:
    assert len(SEEDS) >= MIN_SEEDS
    assert SEEDS[:3] == (25, 225, 2025), "those of the paper"
    assert not {26, 226, 2026, 7, 77} & set(SEEDS)


REPEATS = 2000
XS = find("rounds").sweep.values["cpu"]
RIVALS = tuple(row.key for row in find("participation").rows)
"""SPECIAL and the eight other methods of the paper."""


def simulated(rng: np.random.Generator, effect: float) -> dict[tuple[str, float | None], dict[int, float]]:
    """Random metrics with a common effect of the seed; SPECIAL is better than the others by `effect` deviations."""
    noise = rng.normal(0, 1, (len(RIVALS), 1 + len(XS), len(SEEDS))) + rng.normal(0, 3, len(SEEDS))
    noise[RIVALS.index("special")] += effect
    return {
        (row, x): dict(zip(SEEDS, noise[i, j].tolist(), strict=True))
        for i, row in enumerate(RIVALS)
        for j, x in enumerate((None, *XS))
    }


def verdict_rates(results: Callable, study: str, rule: Rule, effect: float = 0.0, repeats: int = REPEATS) -> tuple:
    """How often the rule says "holds" and "does not hold"."""
    rng = np.random.default_rng(14)
    found = [rule.judge(results(study, simulated(rng, effect))).verdict for _ in range(repeats)]
    return found.count(HOLDS) / repeats, found.count(FAILS) / repeats


CASES = {
    "one rival": ("main", Better("acc", "special", "fedavg")),
    "eight rivals": ("main", Best("acc", among=RIVALS)),
    "some value of a sweep": ("rounds", BetterSomewhere("acc", "special", "fedavg")),
    "a rise along a sweep": ("rounds", Rises("acc")),
    "a peak in a sweep": ("rounds", Peaks("acc")),
    "near the best of a sweep": ("rounds", NearBest("acc", 0.0)),
}


@pytest.mark.parametrize("case", CASES)
def test_where_nothing_differs_verdicts_are_as_rare_as_the_level_says(results, case: str) -> None:
    """The number of verdicts among 2000 simulated claims is Binomial(2000, p) with p ≤ 5 %.

    It exceeds `limit` with a probability below one in a million, so a larger number shows that p > 5 %.
    """
    limit = binom.isf(1e-6, REPEATS, LEVEL)
    assert limit / REPEATS < 0.075
    assert sum(verdict_rates(results, *CASES[case])) * REPEATS <= limit


def test_a_single_comparison_uses_the_whole_level(results) -> None:
    """Verdicts are not rarer than promised either: the rate is 5 %, half of it in each direction."""
    holds, fails = verdict_rates(results, *CASES["one rival"])
    for rate in (holds, fails):
        assert binom.isf(1 - 1e-6, REPEATS, LEVEL / 2) <= rate * REPEATS <= binom.isf(1e-6, REPEATS, LEVEL / 2)


@pytest.mark.parametrize("case", ["one rival", "eight rivals", "some value of a sweep"])
def test_a_real_difference_is_found_in_both_directions(results, case: str) -> None:
    """SPECIAL is better, or worse, by five standard deviations of a run."""
    assert verdict_rates(results, *CASES[case], effect=5, repeats=200)[0] > 0.75
    assert verdict_rates(results, *CASES[case], effect=-5, repeats=200)[1] > 0.75
