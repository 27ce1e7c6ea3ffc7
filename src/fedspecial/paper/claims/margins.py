"""Rules for claims with a margin: at least so many points better than another row, on one benchmark or on average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fedspecial.metrics.statistics import directions
from fedspecial.paper.claims.base import (
    NO_VALUE,
    BenchmarkResults,
    Judgement,
    advantage,
    shown,
    shown_interval,
    verdict_of,
)
from fedspecial.paper.metrics import metric
from fedspecial.report.comparison import MeanStd


@dataclass(frozen=True)
class AtLeast:
    """One row is better than another by at least `margin`; a negative margin: not worse by more than that.

    One comparison: the advantage of each seed less the margin. It holds if that is significantly above 0.
    """

    key: str
    row: str
    than: str
    margin: float

    def judge(self, results: BenchmarkResults) -> Judgement:
        one, other = results.values(self.row, self.key), results.values(self.than, self.key)
        return _judged(results, self, one, other)


@dataclass(frozen=True)
class OnAverage:
    """The same for the mean over several benchmarks; only seeds with which both rows ran on all of them count,
    so nothing is decided where a benchmark is missing. Optional ones, whose data may not be there, count if one of the
    two rows ran on them."""

    key: str
    row: str
    than: str
    margin: float
    benchmarks: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def judge(self, results: BenchmarkResults) -> Judgement:
        averaged = [*self.benchmarks, *(name for name in self.optional if self._has_run(results, name))]
        one, other = (self._means(results, row, averaged) for row in (self.row, self.than))
        found = _judged(results, self, one, other)
        labels = ", ".join(results.study_results.label(name) for name in averaged)
        return replace(found, ours=f"{found.ours}; mean over {labels}") if found.tested else found

    def _has_run(self, results: BenchmarkResults, benchmark: str) -> bool:
        return any(results.study_results.values(benchmark, row, None, self.key) for row in (self.row, self.than))

    def _means(self, results: BenchmarkResults, row: str, averaged: Sequence[str]) -> dict[int, float]:
        found = [results.study_results.values(name, row, None, self.key) for name in averaged]
        if not found:
            return {}
        seeds = [seed for seed in found[0] if all(seed in values for values in found)]
        return {seed: fmean(values[seed] for values in found) for seed in seeds}


def _judged(
    results: BenchmarkResults, rule: AtLeast | OnAverage, one: Mapping[int, float], other: Mapping[int, float]
) -> Judgement:
    gap = advantage(one, other, metric(rule.key).better)
    beyond = [difference - rule.margin for difference in gap]
    (sign,) = directions([beyond])
    digits = metric(rule.key).digits
    if not gap:
        return Judgement(verdict_of([beyond], holds=False, fails=False), NO_VALUE, NO_VALUE)
    values = [shown(MeanStd.of(found.values()), digits) for found in (one, other)]
    line = f"{values[0]} vs. {values[1]} ({results.label(rule.than)})"
    if interval := shown_interval(gap, digits):
        seeds = ", ".join(f"{difference:+.{digits}f}" for difference in gap).replace("-", "−")
        line += f"; advantage {interval}; by seed {seeds}"
    return Judgement(verdict_of([beyond], holds=sign == 1, fails=sign == -1), line, NO_VALUE)
