"""Rules for claims about a study that sweeps: how a metric goes along the values, and who is ahead at which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from fedspecial.paper.claims import FAILS, HOLDS, NO_VALUE, UNKNOWN, Judgement, Place, advantage, clear
from fedspecial.paper.metrics import metric


def _swept(place: Place, row: str, key: str) -> tuple[dict[float, dict[int, float]], str, str]:
    """Values along the sweep, and how they read in ours and in print."""
    ours = {x: values for x in place.xs if (values := place.values(row, key, x))}
    theirs = {x: value.mean for x in place.xs if (value := place.printed(row, key, x)) is not None}
    means = {x: fmean(values.values()) for x, values in ours.items()}
    return ours, _along(means, ".1f") or NO_VALUE, _along(theirs, ".1f") or place.unprinted


def _along(values: Mapping[float, float], form: str) -> str:
    return ", ".join(f"{x:g}: {value:{form}}" for x, value in values.items()).replace("-", "−")


@dataclass(frozen=True)
class Rises:
    """A metric rises (or, with sign -1, falls) along the sweep: clearly from end to end, no step clearly against it."""

    key: str
    row: str = "special"
    sign: int = 1

    def judge(self, place: Place) -> Judgement:
        ours, line, theirs = _swept(place, self.row, self.key)
        if len(ours) < 2:
            return Judgement(UNKNOWN, line, theirs)
        curve = list(ours.values())
        whole = clear(advantage(curve[-1], curve[0], self.sign))
        steps = [clear(advantage(after, before, self.sign)) for before, after in pairwise(curve)]
        against = whole == -1 or -1 in steps
        complete = len(ours) == len(place.xs)
        return Judgement(FAILS if against else HOLDS if whole == 1 and complete else UNKNOWN, line, theirs)


@dataclass(frozen=True)
class Peaks:
    """A metric is best (with sign -1: worst) inside the sweep: clearly above both ends."""

    key: str
    row: str = "special"
    sign: int = 1

    def judge(self, place: Place) -> Judgement:
        ours, line, theirs = _swept(place, self.row, self.key)
        if len(ours) < 3 or len(ours) < len(place.xs):
            return Judgement(UNKNOWN, line, theirs)
        curve = list(ours.values())
        top = max(curve[1:-1], key=lambda values: self.sign * fmean(values.values()))
        over = [clear(advantage(top, end, self.sign)) for end in (curve[0], curve[-1])]
        return Judgement(FAILS if -1 in over else HOLDS if over == [1, 1] else UNKNOWN, line, theirs)


@dataclass(frozen=True)
class Band:
    """The mean stays within so many points of the best at its neighbours on both sides; open if it has but one."""

    key: str
    width: float
    row: str = "special"
    published: str = ""

    def judge(self, place: Place) -> Judgement:
        ours, _, _ = _swept(place, self.row, self.key)
        if len(ours) < 3:
            return Judgement(UNKNOWN, NO_VALUE, self.published)
        means = {x: fmean(values.values()) for x, values in ours.items()}
        xs = list(means)
        best = max(means, key=lambda x: means[x])
        at = xs.index(best)
        near = [means[best] - means[x] <= self.width for x in (*xs[max(at - 1, 0) : at], *xs[at + 1 : at + 2])]
        band = [x for x in xs if means[best] - means[x] <= self.width]
        verdict = FAILS if not any(near) else HOLDS if near == [True, True] else UNKNOWN
        return Judgement(verdict, f"best {best:g}; within {self.width:g} points: {_listed(band)}", self.published)


@dataclass(frozen=True)
class Ahead:
    """One row is clearly better than another one at some value of the sweep; it fails if it is clearly worse at all."""

    key: str
    row: str
    than: str

    def judge(self, place: Place) -> Judgement:
        better = metric(self.key).better
        gaps = {
            x: advantage(place.values(self.row, self.key, x), place.values(self.than, self.key, x), better)
            for x in place.xs
        }
        gaps = {x: gap for x, gap in gaps.items() if gap}
        signs = [clear(gap) for gap in gaps.values()]
        verdict = HOLDS if 1 in signs else FAILS if len(signs) == len(place.xs) and max(signs) == -1 else UNKNOWN
        line = _along({x: fmean(gap) for x, gap in gaps.items()}, "+.1f")
        return Judgement(verdict, f"ahead by {line}" if line else NO_VALUE, NO_VALUE)


def _listed(xs: Sequence[float]) -> str:
    return ", ".join(f"{x:g}" for x in xs)
