"""The paper's claims about its tables and figures, and whether our runs support them.

A rule turns a claim into comparisons (`statistics`) and says which significant differences confirm the claim and which
refute it. The bar is the same in both directions; everything else is undecided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, Protocol

from fedspecial.metrics.statistics import LEVEL, MIN_SEEDS, t_interval
from fedspecial.paper.grid import StudyResults
from fedspecial.paper.spec import LABELS
from fedspecial.report.comparison import MeanStd

Verdict = Literal["holds", "does not hold", "undecided at this scale", "too few seeds"]
HOLDS: Verdict = "holds"
FAILS: Verdict = "does not hold"
UNDECIDED: Verdict = "undecided at this scale"
TOO_FEW: Verdict = "too few seeds"
NO_VALUE = "–"
RULE = (
    "We compare two methods seed by seed, because with the same seed both run on the same federation. Brackets contain "
    f"the {100 * (1 - LEVEL):.0f} % confidence interval of the mean difference (Student's t). A difference is "
    f"significant if its two-sided p-value is at most {LEVEL:g}; a claim that makes several comparisons gets Holm's "
    "correction for their number. A claim holds if all its differences are significant and in its favour. It does not "
    "hold if one difference is significant and against it. A claim that something happens for some value of a sweep "
    "holds if one difference is significant and in its favour, and does not hold if all are significant and against "
    f"it. Comparisons with fewer than {MIN_SEEDS} seeds decide nothing: the verdict is then too few seeds. Everything "
    f"else is undecided. If nothing differed, at most {100 * LEVEL:.0f} % of the claims would get a verdict."
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


class ClaimKind(Enum):
    """Whose claim it is. The headline counts the kinds apart; the value is its title there."""

    PAPER = "Claims of the paper"
    OURS = "Our own questions"
    CONSTRUCTION = "Checks of what holds by construction"


KIND_NOTES: Mapping[ClaimKind, str] = {
    ClaimKind.PAPER: "",
    ClaimKind.OURS: "our question",
    ClaimKind.CONSTRUCTION: "by construction",
}
COUNTED = {HOLDS: "hold", FAILS: "do not hold", UNDECIDED: "undecided at this scale", TOO_FEW: "with too few seeds"}
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
    """A statement and the rule that tests it; `{benchmark}` in the text is replaced by its name.

    benchmarks: the benchmarks that the claim is about, if not all
    kind:       whose claim it is
    examined:   what we examined in case the claim does not hold
    """

    text: str
    rule: Rule
    benchmarks: tuple[str, ...] | None = None
    kind: ClaimKind = ClaimKind.PAPER
    examined: str = ""


def verdict_of(comparisons: Iterable[Sequence[float]], *, holds: bool, fails: bool) -> Verdict:
    """The verdict from what the significant differences say; without one, whether seeds or differences are missing."""
    if holds or fails:
        return HOLDS if holds else FAILS
    return TOO_FEW if any(0 < len(differences) < MIN_SEEDS for differences in comparisons) else UNDECIDED


def advantage(one: Mapping[int, float], other: Mapping[int, float], better: int = 1) -> list[float]:
    """The difference for each seed, positive where `one` is better."""
    return [better * (one[seed] - other[seed]) for seed in one if seed in other]


def shown(value: MeanStd | None, digits: int = 2) -> str:
    if value is None:
        return NO_VALUE
    mean = f"{value.mean:.{digits}f}".replace("-", "−")
    return mean + ("" if value.std is None else f" ± {value.std:.{digits}f}")


def shown_interval(differences: Sequence[float], digits: int = 2) -> str:
    """A mean difference with its confidence interval, "+1.20 [0.40, 2.00]"; empty for fewer than two seeds."""
    found = t_interval(differences)
    if found is None:
        return ""
    return f"{found.mean:+.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]".replace("-", "−")


def judged(study_results: StudyResults) -> list[tuple[str, Claim, Judgement]]:
    """Every claim of a study on every benchmark that it is about: (text, claim, judgement).

    At scale tiny, where the only benchmark is not in the paper, it stands for all of them.
    """
    rows: dict[str, tuple[str, Claim, Judgement]] = {}
    for claim in study_results.study.claims:
        for benchmark in study_results.benchmarks:
            if claim.benchmarks is None or benchmark in claim.benchmarks or study_results.request.scale == "tiny":
                text = claim.text.format(benchmark=study_results.label(benchmark))
                if text not in rows:
                    rows[text] = text, claim, claim.rule.judge(BenchmarkResults(study_results, benchmark))
    return list(rows.values())
