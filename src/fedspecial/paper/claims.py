"""What the paper says of its tables and figures, and whether our runs agree.

A comparison is paired: with the same seed all methods face the same federation, so d is the difference seed by seed.
It is clear if |mean d| > standard deviation of d, over at least two seeds. "holds" and "does not hold" need clear
differences; everything else, missing runs included, is "can't tell at this scale".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, Protocol

from fedspecial.paper.grid import Evidence
from fedspecial.paper.metrics import metric
from fedspecial.paper.spec import LABELS
from fedspecial.report.comparison import Spread

Verdict = Literal["holds", "does not hold", "can't tell at this scale"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
UNKNOWN: Verdict = "can't tell at this scale"
NO_VALUE = "–"
RULE = (
    "A difference between two methods is taken seed by seed, since with one seed both face the same federation, and is "
    "clear if its mean over the seeds is larger than its standard deviation (at least two seeds). A claim holds if its "
    "differences are clear in its favour, does not hold if one is clear against it, and can't be told otherwise or "
    "where runs are missing. Three seeds are few: a clear difference is a finding, not a proof."
)


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    ours: str
    published: str

    @property
    def looked_at(self) -> bool:
        """Whether there were any runs to look at."""
        return self.ours != NO_VALUE


COUNTED = {HOLDS: "hold", FAILS: "do not hold", UNKNOWN: "can't be told at this scale"}


def tally(judgements: Iterable[Judgement]) -> dict[str, int]:
    """How many claims hold and so on; those without any run are counted apart."""
    found = Counter(COUNTED[j.verdict] if j.looked_at else "without runs" for j in judgements)
    return {kind: found[kind] for kind in (*COUNTED.values(), "without runs")}


@dataclass(frozen=True)
class Place:
    """Where a claim is looked at: one benchmark of a study as far as it has been run."""

    evidence: Evidence
    benchmark: str

    def values(self, row: str, key: str, x: float | None = None) -> dict[int, float]:
        return self.evidence.values(self.benchmark, row, x, key)

    def printed(self, row: str, key: str, x: float | None = None) -> Spread | None:
        return self.evidence.printed(self.benchmark, row, x, key)

    @property
    def unprinted(self) -> str:
        """What stands for a printed value that there is not."""
        return "in a picture only" if self.evidence.study.pictured else NO_VALUE

    @property
    def rows(self) -> list[str]:
        return [row.key for row in self.evidence.study.rows]

    @property
    def xs(self) -> Sequence[float]:
        sweep = self.evidence.study.sweep
        return () if sweep is None else sweep.values[self.evidence.ask.scale]

    def label(self, row: str) -> str:
        return next((found.label for found in self.evidence.study.rows if found.key == row), LABELS.get(row, row))


class Rule(Protocol):
    def judge(self, place: Place) -> Judgement: ...


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and the rule that looks at it; `{benchmark}` is filled in.

    benchmarks: where it is said, if not of all
    ours: a question that the paper does not ask
    tried: where to look on if it does not hold
    """

    text: str
    rule: Rule
    benchmarks: tuple[str, ...] | None = None
    ours: bool = False
    tried: str = ""


def clear(differences: Sequence[float]) -> int:
    """1 or -1 if the mean is larger than the spread, else 0."""
    if len(differences) < 2:
        return 0
    mean = fmean(differences)
    return 0 if abs(mean) <= stdev(differences) else (1 if mean > 0 else -1)


def advantage(one: Mapping[int, float], other: Mapping[int, float], better: int = 1) -> list[float]:
    """Seed by seed, positive where the one is better."""
    return [better * (one[seed] - other[seed]) for seed in one if seed in other]


def shown(value: Spread | None, digits: int = 2) -> str:
    if value is None:
        return NO_VALUE
    mean = f"{value.mean:.{digits}f}".replace("-", "−")
    return mean + ("" if value.std is None else f" ± {value.std:.{digits}f}")


@dataclass(frozen=True)
class Best:
    """One row is the best of all (those compared by the paper: rows without words of their own)."""

    key: str
    row: str = "special"
    x: float | None = None
    among: tuple[str, ...] | None = None

    def judge(self, place: Place) -> Judgement:
        better = metric(self.key).better
        rivals = [r for r in self.among or place.rows if r != self.row and (self.among or "=" not in r)]
        mine = place.values(self.row, self.key, self.x)
        found = {rival: place.values(rival, self.key, self.x) for rival in rivals}
        signs = [clear(advantage(mine, values, better)) for values in found.values()]
        verdict = FAILS if -1 in signs else HOLDS if signs and min(signs) == 1 else UNKNOWN
        ours = {rival: Spread.of(values.values()) for rival, values in found.items()}
        theirs = {rival: place.printed(rival, self.key, self.x) for rival in rivals}
        return Judgement(
            verdict,
            self._line(place, Spread.of(mine.values()), ours, better),
            self._line(place, place.printed(self.row, self.key, self.x), theirs, better),
        )

    def _line(self, place: Place, mine: Spread | None, rivals: Mapping[str, Spread | None], better: int) -> str:
        there = {rival: value for rival, value in rivals.items() if value is not None}
        if mine is None or not there:
            return NO_VALUE
        best = max(there, key=lambda rival: better * there[rival].mean)
        digits = metric(self.key).digits
        return f"{shown(mine, digits)}; best other {place.label(best)} {shown(there[best], digits)}"


@dataclass(frozen=True)
class Better:
    """One row is better than another one."""

    key: str
    row: str
    than: str
    x: float | None = None

    def judge(self, place: Place) -> Judgement:
        one, other = place.values(self.row, self.key, self.x), place.values(self.than, self.key, self.x)
        sign = clear(advantage(one, other, metric(self.key).better))
        return Judgement(
            {1: HOLDS, -1: FAILS, 0: UNKNOWN}[sign],
            _against(place, self, Spread.of(one.values()), Spread.of(other.values())),
            _against(
                place,
                self,
                place.printed(self.row, self.key, self.x),
                place.printed(self.than, self.key, self.x),
                place.unprinted,
            ),
        )


def _against(
    place: Place, rule: Better | NoMore, one: Spread | None, other: Spread | None, missing: str = NO_VALUE
) -> str:
    if one is None or other is None:
        return missing
    digits = metric(rule.key).digits
    return f"{shown(one, digits)} against {shown(other, digits)} ({place.label(rule.than)})"


@dataclass(frozen=True)
class NoMore:
    """One row costs no more than another one times a factor, in every seed."""

    key: str
    row: str
    than: str
    factor: float = 1.0

    def judge(self, place: Place) -> Judgement:
        one, other = place.values(self.row, self.key), place.values(self.than, self.key)
        ratios = [one[seed] / other[seed] for seed in one if other.get(seed)]
        verdict = UNKNOWN if not ratios else HOLDS if max(ratios) <= self.factor * (1 + 1e-9) else FAILS
        if len(set(r <= self.factor * (1 + 1e-9) for r in ratios)) > 1:
            verdict = UNKNOWN
        return Judgement(
            verdict,
            _against(place, Better(self.key, self.row, self.than), Spread.of(one.values()), Spread.of(other.values())),
            _against(place, self, place.printed(self.row, self.key), place.printed(self.than, self.key)),
        )


@dataclass(frozen=True)
class Positive:
    """A metric of a row is above zero."""

    key: str
    row: str

    def judge(self, place: Place) -> Judgement:
        values = list(place.values(self.row, self.key).values())
        verdict = {1: HOLDS, -1: FAILS, 0: UNKNOWN}[clear(values)]
        return Judgement(verdict, shown(Spread.of(values)), place.unprinted)


def judged(evidence: Evidence) -> list[tuple[str, Claim, Judgement]]:
    """Every claim of a study on every benchmark where it is made: (sentence, claim, judgement)."""
    rows = []
    for claim in evidence.study.claims:
        for benchmark in evidence.benchmarks:
            if claim.benchmarks is None or benchmark in claim.benchmarks or evidence.ask.scale == "tiny":
                text = claim.text.format(benchmark=evidence.label(benchmark))
                rows.append((text, claim, claim.rule.judge(Place(evidence, benchmark))))
    return rows
