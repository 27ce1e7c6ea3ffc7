"""The theory's part of a study: sweeps on problems with known constants, and claims about them and about drift."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspecial.paper.claims import FAILS, HOLDS, NO_VALUE, UNKNOWN, Judgement, Place
from fedspecial.theory.plots import plot_study
from fedspecial.theory.simulation.rate_studies import rate_study

SURE = 3.0
"""So many standard errors a measured slope may lie from the claimed one."""


def run_rate(sweep: str, folder: Path) -> bool:
    """Run a sweep unless it is there, and say whether it was run; the JSON comes last and marks it as done."""
    target = folder / f"theory-{sweep}.json"
    if target.exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    study = rate_study(sweep)
    for ending in (".png", ".svg"):
        plot_study(study, target.with_suffix(ending))
    part = target.with_suffix(".part")
    part.write_text(json.dumps(study.to_dict(), indent=2) + "\n", encoding="utf-8")
    part.replace(target)
    return True


def read_rates(sweeps: tuple[str, ...], folder: Path) -> dict[str, dict[str, Any]]:
    paths = {sweep: folder / f"theory-{sweep}.json" for sweep in sweeps}
    return {sweep: json.loads(path.read_text(encoding="utf-8")) for sweep, path in paths.items() if path.exists()}


@dataclass(frozen=True)
class Certified:
    """‖θ − anchor‖ stays under the cap that its own steps give, in every anchored task of every run."""

    row: str = "special"

    def judge(self, place: Place) -> Judgement:
        issued = [
            summary
            for point, runs in place.evidence.runs.items()
            if (point.benchmark, point.row.key) == (place.benchmark, self.row)
            for run in runs.values()
            for summary in run.result.certificates or []
            if summary["anchored"]
        ]
        if not issued:
            return Judgement(UNKNOWN, NO_VALUE, "a lemma")
        broken = sum(bool(summary["violated"]) for summary in issued)
        largest = max(summary["drift"] / summary["recursion_bound"] for summary in issued)
        ours = f"{len(issued)} tasks, {broken} broken; drift at most {largest:.3f} of its cap"
        return Judgement(FAILS if broken else HOLDS, ours, "a lemma")


@dataclass(frozen=True)
class Slope:
    """A curve of a sweep has the slope that is claimed, on a log-log scale."""

    sweep: str
    curve: str
    claimed: float

    def judge(self, place: Place) -> Judgement:
        study = place.evidence.rates.get(self.sweep)
        found = next((c for c in study["curves"] if c["name"] == self.curve), None) if study else None
        published = f"slope {self.claimed:g}".replace("-", "−")
        if found is None or found["slope"] is None:
            return Judgement(UNKNOWN, NO_VALUE, published)
        slope, error = found["slope"], found["stderr"]
        agrees = abs(slope - self.claimed) <= max(SURE * error, 0.05)
        ours = f"slope {slope:.3f} ± {error:.3f}".replace("-", "−")
        return Judgement(HOLDS if agrees else FAILS, ours, published)
