"""Rules for claims about a sweep: how a metric depends on the swept setting, and which method is better at a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from fedspecial.paper.claims.base import (
    FAILS,
    HOLDS,
    NO_VALUE,
    UNDECIDED,
    BenchmarkResults,
    Judgement,
    advantage,
    clear,
)
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
    """A metric rises (sign -1: falls) along the sweep: clearly from end to end, with no clear step back."""

    key: str
    row: str = "special"
    sign: int = 1

    def judge(self, results: BenchmarkResults) -> Judgement:
        ours, line, theirs = _swept(results, self.row, self.key)
        if len(ours) < 2:
            return Judgement(UNDECIDED, line, theirs)
        curve = list(ours.values())
        overall = clear(advantage(curve[-1], curve[0], self.sign))
        steps = [clear(advantage(after, before, self.sign)) for before, after in pairwise(curve)]
        against = overall == -1 or -1 in steps
        complete = len(ours) == len(results.xs)
        return Judgement(FAILS if against else HOLDS if overall == 1 and complete else UNDECIDED, line, theirs)


@dataclass(frozen=True)
class Peaks:
    """A metric has its maximum (sign -1: minimum) inside the sweep, clearly above (below) both ends."""

    key: str
    row: str = "special"
    sign: int = 1

    def judge(self, results: BenchmarkResults) -> Judgement:
        ours, line, theirs = _swept(results, self.row, self.key)
        if len(ours) < 3 or len(ours) < len(results.xs):
            return Judgement(UNDECIDED, line, theirs)
        curve = list(ours.values())
        top = max(curve[1:-1], key=lambda values: self.sign * fmean(values.values()))
        over = [clear(advantage(top, end, self.sign)) for end in (curve[0], curve[-1])]
        return Judgement(FAILS if -1 in over else HOLDS if over == [1, 1] else UNDECIDED, line, theirs)


@dataclass(frozen=True)
class NearBest:
    """At both neighbours of the best value the mean is within `width` points; undecided if only one exists."""

    key: str
    width: float
    row: str = "special"
    published: str = ""

    def judge(self, results: BenchmarkResults) -> Judgement:
        ours, _, _ = _swept(results, self.row, self.key)
        if len(ours) < 3:
            return Judgement(UNDECIDED, NO_VALUE, self.published)
        means = {x: fmean(values.values()) for x, values in ours.items()}
        xs = list(means)
        best = max(means, key=lambda x: means[x])
        at = xs.index(best)
        near = [means[best] - means[x] <= self.width for x in (*xs[max(at - 1, 0) : at], *xs[at + 1 : at + 2])]
        band = [x for x in xs if means[best] - means[x] <= self.width]
        verdict = FAILS if not any(near) else HOLDS if near == [True, True] else UNDECIDED
        return Judgement(verdict, f"best at {best:g}; within {self.width:g} points at {_listed(band)}", self.published)


@dataclass(frozen=True)
class BetterSomewhere:
    """One row is clearly better than another for at least one swept value; it fails if it is clearly worse for all."""

    key: str
    row: str
    than: str

    def judge(self, results: BenchmarkResults) -> Judgement:
        better = metric(self.key).better
        gaps = {
            x: advantage(results.values(self.row, self.key, x), results.values(self.than, self.key, x), better)
            for x in results.xs
        }
        gaps = {x: gap for x, gap in gaps.items() if gap}
        signs = [clear(gap) for gap in gaps.values()]
        verdict = HOLDS if 1 in signs else FAILS if len(signs) == len(results.xs) and max(signs) == -1 else UNDECIDED
        line = _along({x: fmean(gap) for x, gap in gaps.items()}, "+.1f")
        return Judgement(verdict, f"difference {line}" if line else NO_VALUE, NO_VALUE)


def _listed(xs: Sequence[float]) -> str:
    return ", ".join(f"{x:g}" for x in xs)
