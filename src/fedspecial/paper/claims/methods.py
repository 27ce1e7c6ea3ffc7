"""Rules for claims that compare methods: best of all, better than one, no more expensive, above zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedspecial.metrics.statistics import directions
from fedspecial.paper.claims.base import (
    FAILS,
    HOLDS,
    NO_VALUE,
    UNDECIDED,
    BenchmarkResults,
    Judgement,
    advantage,
    shown,
    shown_interval,
    verdict_of,
)
from fedspecial.paper.metrics import metric
from fedspecial.paper.spec import LABELS
from fedspecial.report.comparison import MeanStd


@dataclass(frozen=True)
class Best:
    """One row is the best of all rows that the paper compares, with the settings of their presets or searches.

    Our own methods are no rivals of a claim of the paper, and joint training, an upper bound, of none. One comparison
    with each other row. All must be significant to confirm it; one refutes it.
    """

    key: str
    row: str = "special"
    x: float | None = None
    among: tuple[str, ...] | None = None

    def judge(self, results: BenchmarkResults) -> Judgement:
        better = metric(self.key).better
        rivals = [r for r in self.among or results.rows if r != self.row and (self.among or r in LABELS)]
        mine = results.values(self.row, self.key, self.x)
        found = {rival: results.values(rival, self.key, self.x) for rival in rivals}
        gaps = {rival: advantage(mine, values, better) for rival, values in found.items()}
        signs = directions(list(gaps.values()))
        ours = {rival: MeanStd.of(values.values()) for rival, values in found.items()}
        theirs = {rival: results.published(rival, self.key, self.x) for rival in rivals}
        line, best = self._line(results.label, MeanStd.of(mine.values()), ours, better)
        interval = shown_interval(gaps[best], metric(self.key).digits) if best is not None else ""
        return Judgement(
            verdict_of(gaps.values(), holds=bool(signs) and min(signs) == 1, fails=-1 in signs),
            line + (f"; advantage {interval}" if interval else ""),
            self._line(LABELS.__getitem__, results.published(self.row, self.key, self.x), theirs, better)[0],
        )

    def _line(
        self, label: Callable[[str], str], mine: MeanStd | None, rivals: Mapping[str, MeanStd | None], better: int
    ) -> tuple[str, str | None]:
        """The values of the row and of the best other row, and which row that is."""
        there = {rival: value for rival, value in rivals.items() if value is not None}
        if mine is None or not there:
            return NO_VALUE, None
        best = max(there, key=lambda rival: better * there[rival].mean)
        digits = metric(self.key).digits
        return f"{shown(mine, digits)}; best other {label(best)} {shown(there[best], digits)}", best


@dataclass(frozen=True)
class Better:
    """One row is better than another: one comparison."""

    key: str
    row: str
    than: str
    x: float | None = None

    def judge(self, results: BenchmarkResults) -> Judgement:
        one, other = results.values(self.row, self.key, self.x), results.values(self.than, self.key, self.x)
        gap = advantage(one, other, metric(self.key).better)
        return _one_comparison(results, self, gap, self.x)


@dataclass(frozen=True)
class AtMost:
    """A measured cost of one row is at most `factor` times that of another.

    One comparison: factor · cost of the other − cost of the row, for each seed.
    """

    key: str
    row: str
    than: str
    factor: float

    def judge(self, results: BenchmarkResults) -> Judgement:
        one, other = results.values(self.row, self.key), results.values(self.than, self.key)
        scaled = {seed: self.factor * value for seed, value in other.items()}
        return _one_comparison(results, self, advantage(scaled, one))


def _one_comparison(
    results: BenchmarkResults, rule: Better | AtMost, gap: list[float], x: float | None = None
) -> Judgement:
    (sign,) = directions([gap])
    found = [MeanStd.of(results.values(row, rule.key, x).values()) for row in (rule.row, rule.than)]
    interval = shown_interval(gap, metric(rule.key).digits)
    return Judgement(
        verdict_of([gap], holds=sign == 1, fails=sign == -1),
        _versus(results, rule, found[0], found[1]) + (f"; advantage {interval}" if interval else ""),
        _versus(
            results,
            rule,
            results.published(rule.row, rule.key, x),
            results.published(rule.than, rule.key, x),
            results.unpublished,
        ),
    )


def _versus(
    results: BenchmarkResults,
    rule: Better | AtMost | NeverMore,
    one: MeanStd | None,
    other: MeanStd | None,
    missing: str = NO_VALUE,
) -> str:
    if one is None or other is None:
        return missing
    digits = metric(rule.key).digits
    return f"{shown(one, digits)} vs. {shown(other, digits)} ({results.label(rule.than)})"


@dataclass(frozen=True)
class NeverMore:
    """A cost of one row is never above that of another: a check of every run, not a statistical test.

    extra: what the claim itself grants the row in addition, in the unit of the tables
    """

    key: str
    row: str
    than: str
    extra: float = 0.0

    def judge(self, results: BenchmarkResults) -> Judgement:
        one, other = results.values(self.row, self.key), results.values(self.than, self.key)
        more = [one[seed] > other[seed] * (1 + 1e-9) + self.extra for seed in one if seed in other]
        return Judgement(
            UNDECIDED if not more else FAILS if any(more) else HOLDS,
            _versus(results, self, MeanStd.of(one.values()), MeanStd.of(other.values())),
            _versus(results, self, results.published(self.row, self.key), results.published(self.than, self.key)),
        )


@dataclass(frozen=True)
class Positive:
    """A metric is above zero: one comparison."""

    key: str
    row: str

    def judge(self, results: BenchmarkResults) -> Judgement:
        values = list(results.values(self.row, self.key).values())
        (sign,) = directions([values])
        line = shown_interval(values) or shown(MeanStd.of(values))
        return Judgement(verdict_of([values], holds=sign == 1, fails=sign == -1), line, results.unpublished)
