"""The paper's claims about its tables and figures, and whether our runs support them.

Comparisons are paired: with the same seed all methods run on the same federation, so d is the difference per seed. It
is clear if |mean d| > standard deviation of d, over at least two seeds. "holds" and "does not hold" require clear
differences; everything else, including missing runs, is "undecided at this scale".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal, Protocol

from fedspecial.paper.grid import StudyResults
from fedspecial.paper.spec import LABELS
from fedspecial.report.comparison import MeanStd

Verdict = Literal["holds", "does not hold", "undecided at this scale"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
UNDECIDED: Verdict = "undecided at this scale"
NO_VALUE = "–"
RULE = (
    "We compare two methods seed by seed, because with the same seed both run on the same federation. A difference is "
    "clear if its mean over the seeds is larger than its standard deviation, with at least two seeds. A claim holds if "
    "all its differences are clear and in its favour. It does not hold if one difference is clear and against it. "
    "Otherwise, or if runs are missing, it is undecided. Three seeds are few: a clear difference is evidence, not a "
    "proof."
)


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    ours: str
    published: str

    @property
    def tested(self) -> bool:
        """Whether there was at least one run to test the claim with."""
        return self.ours != NO_VALUE


COUNTED = {HOLDS: "hold", FAILS: "do not hold", UNDECIDED: "undecided at this scale"}
UNTESTED = "not yet tested"


def count_verdicts(judgements: Iterable[Judgement]) -> dict[str, int]:
    """The number of claims per verdict; claims without any run are counted separately."""
    found = Counter(COUNTED[j.verdict] if j.tested else UNTESTED for j in judgements)
    return {kind: found[kind] for kind in (*COUNTED.values(), UNTESTED)}


@dataclass(frozen=True)
class BenchmarkResults:
    """The results of a study on one benchmark, which a claim is tested with."""

    study_results: StudyResults
    benchmark: str

    def values(self, row: str, key: str, x: float | None = None) -> dict[int, float]:
        return self.study_results.values(self.benchmark, row, x, key)

    def published(self, row: str, key: str, x: float | None = None) -> MeanStd | None:
        return self.study_results.published(self.benchmark, row, x, key)

    @property
    def unpublished(self) -> str:
        """The text shown instead of a missing published value."""
        return "only shown in a figure" if self.study_results.study.figure_only else NO_VALUE

    @property
    def rows(self) -> list[str]:
        return [row.key for row in self.study_results.study.rows]

    @property
    def xs(self) -> Sequence[float]:
        sweep = self.study_results.study.sweep
        return () if sweep is None else sweep.values[self.study_results.request.scale]

    def label(self, row: str) -> str:
        return next((found.label for found in self.study_results.study.rows if found.key == row), LABELS.get(row, row))


class Rule(Protocol):
    """Tests a claim on the results of one benchmark."""

    def judge(self, results: BenchmarkResults) -> Judgement: ...


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and the rule that tests it; `{benchmark}` in the text is replaced by its name.

    benchmarks: the benchmarks that the claim is about, if not all
    ours:       whether this is a question of ours that the paper does not ask
    examined:   what we examined in case the claim does not hold
    """

    text: str
    rule: Rule
    benchmarks: tuple[str, ...] | None = None
    ours: bool = False
    examined: str = ""


def clear(differences: Sequence[float]) -> int:
    """1 or -1 if the mean is larger in absolute value than the standard deviation, otherwise 0."""
    if len(differences) < 2:
        return 0
    mean = fmean(differences)
    return 0 if abs(mean) <= stdev(differences) else (1 if mean > 0 else -1)


def advantage(one: Mapping[int, float], other: Mapping[int, float], better: int = 1) -> list[float]:
    """The difference for each seed, positive where `one` is better."""
    return [better * (one[seed] - other[seed]) for seed in one if seed in other]


def shown(value: MeanStd | None, digits: int = 2) -> str:
    if value is None:
        return NO_VALUE
    mean = f"{value.mean:.{digits}f}".replace("-", "−")
    return mean + ("" if value.std is None else f" ± {value.std:.{digits}f}")


def judged(study_results: StudyResults) -> list[tuple[str, Claim, Judgement]]:
    """Every claim of a study on every benchmark that it is about: (text, claim, judgement)."""
    rows = []
    for claim in study_results.study.claims:
        for benchmark in study_results.benchmarks:
            if claim.benchmarks is None or benchmark in claim.benchmarks or study_results.request.scale == "tiny":
                text = claim.text.format(benchmark=study_results.label(benchmark))
                rows.append((text, claim, claim.rule.judge(BenchmarkResults(study_results, benchmark))))
    return rows
