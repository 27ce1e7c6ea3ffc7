"""Rules for claims of the theory: the drift bound in our runs, and slopes in sweeps with known constants."""

from __future__ import annotations

from dataclasses import dataclass

from fedspecial.paper.claims.base import FAILS, HOLDS, NO_VALUE, UNDECIDED, BenchmarkResults, Judgement

STANDARD_ERRORS = 3.0
"""Half the width of the interval around a measured slope."""
TOLERANCE = 0.05
"""How far a slope may be from the claimed one."""


@dataclass(frozen=True)
class UnderDriftBound:
    """‖θ − anchor‖ stays below the bound computed from the server steps, in every anchored task of every run.

    A check of every run, not a statistical test.
    """

    row: str = "special"

    def judge(self, results: BenchmarkResults) -> Judgement:
        issued = [
            summary
            for point, runs in results.study_results.runs.items()
            if (point.benchmark, point.row.key) == (results.benchmark, self.row)
            for run in runs.values()
            for summary in run.result.certificates or []
            if summary["anchored"]
        ]
        if not issued:
            return Judgement(UNDECIDED, NO_VALUE, "a lemma")
        broken = sum(bool(summary["violated"]) for summary in issued)
        ours = f"violated in {broken} of {len(issued)} tasks"
        # In the first round of a task the two are equal, so the largest share of all rounds says nothing.
        ends = [one["drift"] / one["recursion_bound"] for one in issued if one["drift"] and one["recursion_bound"]]
        ours += f"; drift at most {max(ends):.3f} of its bound at the end of a task" if ends else ""
        return Judgement(FAILS if broken else HOLDS, ours, "a lemma")


@dataclass(frozen=True)
class Slope:
    """A curve of a sweep has the claimed slope on a log-log scale, up to `TOLERANCE`.

    It holds if the whole interval of the measured slope is within the tolerance, does not hold if none of it is, and is
    undecided otherwise.
    """

    sweep: str
    curve: str
    claimed: float

    def judge(self, results: BenchmarkResults) -> Judgement:
        study = results.study_results.rates.get(self.sweep)
        found = next((c for c in study["curves"] if c["name"] == self.curve), None) if study else None
        published = f"slope {self.claimed:g}".replace("-", "−")
        if found is None or found["slope"] is None:
            return Judgement(UNDECIDED, NO_VALUE, published)
        slope, error = found["slope"], found["stderr"]
        off, half = abs(slope - self.claimed), STANDARD_ERRORS * error
        ours = f"slope {slope:.3f} ± {error:.3f}".replace("-", "−")
        verdict = HOLDS if off + half <= TOLERANCE else FAILS if off - half > TOLERANCE else UNDECIDED
        return Judgement(verdict, ours, published)
