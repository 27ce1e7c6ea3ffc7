"""λ by the paper's two-stage search, on validation data split off the training data; test data is never touched.

First 0 to 1 by 0.2; then the three values inside the interval between the best and the better of its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedspecial.config import Config, Settings, merge_settings
from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.report.comparison import Spread
from fedspecial.runs import directory as directory
from fedspecial.runs.jobs import Job, settings_key

COARSE = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
Curve = Mapping[float, Spread]


@dataclass(frozen=True)
class Search:
    """What is tuned: the words of the run but λ, the seeds, the share held out, and where the runs go."""

    settings: Settings
    seeds: tuple[int, ...]
    holdout: float
    out: Path

    def __post_init__(self) -> None:
        for word in ("lam", "mu", "seed", "holdout", "out"):
            if word in self.settings:
                raise InputError(f"{word}={self.settings[word]}: a search sets this itself")
        if not 0 < self.holdout < 1:
            raise InputError(f"holdout={self.holdout}: must be between 0 and 1, both excluded")

    def runs(self, values: Sequence[float]) -> list[Job]:
        return [self.job(lam, seed) for lam in values for seed in self.seeds]

    def job(self, lam: float, seed: int) -> Job:
        settings = merge_settings({**self.settings, "lam": lam, "holdout": self.holdout, "seed": seed})
        folder = self.out / "runs" / f"{settings['method']}-lam-{lam:g}-{seed}-{settings_key(settings)}"
        return Job(str(settings["method"]), seed, {**settings, "out": str(folder)}, folder)


def fine(curve: Curve) -> tuple[float, ...]:
    """Three values inside the interval between the best λ and the better of its neighbours."""
    xs = sorted(curve)
    at = xs.index(best(curve))
    neighbours = [xs[i] for i in (at - 1, at + 1) if 0 <= i < len(xs)]
    other = max(neighbours, key=lambda x: curve[x].mean)
    low, high = sorted((xs[at], other))
    return tuple(round(low + (high - low) * part / 4, 6) for part in (1, 2, 3))


def best(curve: Curve) -> float:
    """The λ with the highest mean; of equals the smallest."""
    return max(sorted(curve), key=lambda x: curve[x].mean)


def read_curve(search: Search, values: Sequence[float]) -> dict[float, Spread]:
    """ACC on the held-out samples for each λ, over the seeds; their runs are finished."""
    curve = {}
    for lam in values:
        results = [directory.finished(search.job(lam, seed).folder) for seed in search.seeds]
        spread = Spread.of(result.acc for result in results if result is not None)
        if spread is not None:
            curve[lam] = spread
    return curve


def chosen_words(search: Search, lam: float) -> dict[str, Any]:
    """The words of the preset: what was given, and λ; the rest stays with the benchmark's preset."""
    method = str(search.settings.get("method", Config().method))
    return {**search.settings, "method": method, "lam": lam}


def write_preset(search: Search, curve: Curve) -> Path:
    """A file that ``fedspecial run FILE`` takes, with the curve as a remark."""
    lam = best(curve)
    points = "\n".join(f"#   λ = {x:<5g} {100 * curve[x].mean:.2f}" for x in sorted(curve))
    head = (
        f"# λ by two-stage search on {search.holdout:g} of the training samples, seeds "
        f"{', '.join(map(str, search.seeds))}. Mean ACC in per cent:\n{points}\n"
    )
    path = search.out / "preset.yaml"
    body = yaml.safe_dump(chosen_words(search, lam), sort_keys=False, allow_unicode=True)
    write_atomic(path, (head + body).encode())
    return path
