"""Rules for claims about a sweep: how a metric depends on the swept setting, and which method is better at a value.

All comparisons of a claim get one correction together, so that choosing the best value, or the value at which a method
is ahead, from the same runs makes no false verdict more likely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from fedspecial.metrics.statistics import directions
from fedspecial.paper.claims.base import NO_VALUE, UNDECIDED, BenchmarkResults, Judgement, advantage, verdict_of
from fedspecial.paper.metrics import metric


def _swept(results: BenchmarkResults, row: str, key: str) -> tuple[dict[float, dict[int, float]], str, str]:
    """Our values by swept value and seed, and our means and the published values as text."""
    ours = {x: values for x in results.xs if (values := results.values(row, key, x))}
    theirs = {x: value.mean for x in results.xs if (value := results.published(row, key, x)) is not None}
    means = {x: fmean(values.values()) for x, values in ours.items()}
    return ours, _along(means, ".1f") or NO_VALUE, _along(theirs, ".1f") or results.unpublished


def _along(values: Mapping[float, float], form: str) -> str:
    return ", ".join(f"{x:g}: {value:{form}}" for x, value in values.items()).replace("-", "−")


@dataclass(frozen=True)
class Rises:
    """A metric rises (sign -1: falls) along the sweep.

    One comparison of the two ends and one for each step. A significant rise from end to end without a significant step
    back confirms it; a significant step back, or fall from end to end, refutes it.
    """

    key: str
    row: str = "special"
    sign: int = 1

    def judge(self, results: BenchmarkResults) -> Judgement:
        ours, line, theirs = _swept(results, self.row, self.key)
        if len(ours) < 2:
            return Judgement(UNDECIDED, NO_VALUE, theirs)
        curve = list(ours.values())
        gaps = [advantage(curve[-1], curve[0], self.sign)]
        gaps += [advantage(after, before, self.sign) for before, after in pairwise(curve)]
        signs = directions(gaps)
        complete = len(ours) == len(results.xs)
        return Judgement(
            verdict_of(gaps, holds=signs[0] == 1 and -1 not in signs and complete, fails=-1 in signs), line, theirs
        )


@dataclass(frozen=True)
class Peaks:
    """A metric has its maximum (sign -1: minimum) inside the sweep.

    Every inner value is compared with both ends. One inner value significantly above both ends confirms it; an end
    significantly above all inner values refutes it.
    """

    key: str
    row: str = "special"
    sign: int = 1

    def judge(self, results: BenchmarkResults) -> Judgement:
        ours, line, theirs = _swept(results, self.row, self.key)
        if len(ours) < 3 or len(ours) < len(results.xs):
            return Judgement(UNDECIDED, line if len(ours) > 1 else NO_VALUE, theirs)
        first, *inner, last = ours.values()
        gaps = [advantage(values, end, self.sign) for values in inner for end in (first, last)]
        signs = directions(gaps)
        holds = any(pair == (1, 1) for pair in zip(signs[::2], signs[1::2], strict=True))
        fails = max(signs[::2]) == -1 or max(signs[1::2]) == -1
        return Judgement(verdict_of(gaps, holds=holds, fails=fails), line, theirs)


@dataclass(frozen=True)
class NearBest:
    """At both neighbours of the best value the metric is within `width` points of the best.

    Every value is compared with each of its neighbours: width − (metric at the value − metric at the neighbour). The
    two comparisons at the value with the highest mean decide. It is undecided if that value has only one neighbour, or
    if values are missing, one of which could be the best or a neighbour.
    """

    key: str
    width: float
    row: str = "special"
    published: str = ""

    def judge(self, results: BenchmarkResults) -> Judgement:
        ours, _, _ = _swept(results, self.row, self.key)
        if len(ours) < 3:
            return Judgement(UNDECIDED, NO_VALUE, self.published)
        means = {x: fmean(values.values()) for x, values in ours.items()}
        best = max(means, key=lambda x: means[x])
        pairs = [pair for a, b in pairwise(ours) for pair in ((a, b), (b, a))]
        gaps = [[self.width - gap for gap in advantage(ours[x], ours[neighbour])] for x, neighbour in pairs]
        near = [sign for (x, _), sign in zip(pairs, directions(gaps), strict=True) if x == best]
        band = [x for x in means if means[best] - means[x] <= self.width]
        complete = len(ours) == len(results.xs)
        return Judgement(
            verdict_of(gaps, holds=near == [1, 1], fails=-1 in near) if complete else UNDECIDED,
            f"best at {best:g}; within {self.width:g} points at {_listed(band)}",
            self.published,
        )


@dataclass(frozen=True)
class BetterSomewhere:
    """One row is better than another for at least one swept value.

    One comparison for each value. One significant advantage confirms it; significant disadvantages at all values refute
    it.
    """

    key: str
    row: str
    than: str

    def judge(self, results: BenchmarkResults) -> Judgement:
        better = metric(self.key).better
        gaps = {
            x: advantage(results.values(self.row, self.key, x), results.values(self.than, self.key, x), better)
            for x in results.xs
        }
        signs = directions(list(gaps.values()))
        line = _along({x: fmean(gap) for x, gap in gaps.items() if gap}, "+.1f")
        verdict = verdict_of(gaps.values(), holds=1 in signs, fails=max(signs, default=0) == -1)
        return Judgement(verdict, f"difference {line}" if line else NO_VALUE, NO_VALUE)


def _listed(xs: Sequence[float]) -> str:
    return ", ".join(f"{x:g}" for x in xs)
