"""Rules for claims that compare methods: best of all, better than one, no more expensive, above zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedspecial.paper.claims.base import (
    FAILS,
    HOLDS,
    NO_VALUE,
    UNDECIDED,
    BenchmarkResults,
    Judgement,
    advantage,
    clear,
    shown,
)
from fedspecial.paper.metrics import metric
from fedspecial.report.comparison import MeanStd


@dataclass(frozen=True)
class Best:
    """One row is the best of all rows that the paper compares (those without settings of their own)."""

    key: str
    row: str = "special"
    x: float | None = None
    among: tuple[str, ...] | None = None

    def judge(self, results: BenchmarkResults) -> Judgement:
        better = metric(self.key).better
        rivals = [r for r in self.among or results.rows if r != self.row and (self.among or "=" not in r)]
        mine = results.values(self.row, self.key, self.x)
        found = {rival: results.values(rival, self.key, self.x) for rival in rivals}
        signs = [clear(advantage(mine, values, better)) for values in found.values()]
        verdict = FAILS if -1 in signs else HOLDS if signs and min(signs) == 1 else UNDECIDED
        ours = {rival: MeanStd.of(values.values()) for rival, values in found.items()}
        theirs = {rival: results.published(rival, self.key, self.x) for rival in rivals}
        return Judgement(
            verdict,
            self._line(results, MeanStd.of(mine.values()), ours, better),
            self._line(results, results.published(self.row, self.key, self.x), theirs, better),
        )

    def _line(
        self, results: BenchmarkResults, mine: MeanStd | None, rivals: Mapping[str, MeanStd | None], better: int
    ) -> str:
        there = {rival: value for rival, value in rivals.items() if value is not None}
        if mine is None or not there:
            return NO_VALUE
        best = max(there, key=lambda rival: better * there[rival].mean)
        digits = metric(self.key).digits
        return f"{shown(mine, digits)}; best other {results.label(best)} {shown(there[best], digits)}"


@dataclass(frozen=True)
class Better:
    """One row is better than another."""

    key: str
    row: str
    than: str
    x: float | None = None

    def judge(self, results: BenchmarkResults) -> Judgement:
        one, other = results.values(self.row, self.key, self.x), results.values(self.than, self.key, self.x)
        sign = clear(advantage(one, other, metric(self.key).better))
        return Judgement(
            {1: HOLDS, -1: FAILS, 0: UNDECIDED}[sign],
            _versus(results, self, MeanStd.of(one.values()), MeanStd.of(other.values())),
            _versus(
                results,
                self,
                results.published(self.row, self.key, self.x),
                results.published(self.than, self.key, self.x),
                results.unpublished,
            ),
        )


def _versus(
    results: BenchmarkResults,
    rule: Better | AtMost,
    one: MeanStd | None,
    other: MeanStd | None,
    missing: str = NO_VALUE,
) -> str:
    if one is None or other is None:
        return missing
    digits = metric(rule.key).digits
    return f"{shown(one, digits)} vs. {shown(other, digits)} ({results.label(rule.than)})"


@dataclass(frozen=True)
class AtMost:
    """The cost of one row is at most `factor` times that of another, for every seed."""

    key: str
    row: str
    than: str
    factor: float = 1.0

    def judge(self, results: BenchmarkResults) -> Judgement:
        one, other = results.values(self.row, self.key), results.values(self.than, self.key)
        ratios = [one[seed] / other[seed] for seed in one if other.get(seed)]
        verdict = UNDECIDED if not ratios else HOLDS if max(ratios) <= self.factor * (1 + 1e-9) else FAILS
        if len(set(r <= self.factor * (1 + 1e-9) for r in ratios)) > 1:
            verdict = UNDECIDED
        return Judgement(
            verdict,
            _versus(
                results, Better(self.key, self.row, self.than), MeanStd.of(one.values()), MeanStd.of(other.values())
            ),
            _versus(results, self, results.published(self.row, self.key), results.published(self.than, self.key)),
        )


@dataclass(frozen=True)
class Positive:
    """A metric is above zero."""

    key: str
    row: str

    def judge(self, results: BenchmarkResults) -> Judgement:
        values = list(results.values(self.row, self.key).values())
        verdict = {1: HOLDS, -1: FAILS, 0: UNDECIDED}[clear(values)]
        return Judgement(verdict, shown(MeanStd.of(values)), results.unpublished)
