"""Choosing λ with the paper's two-stage search, on validation data split from the training data.

The coarse stage tries λ = 0, 0.2, …, 1. The fine stage tries three values between the best λ and the better of its two
neighbours. Test data is not used.
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
from fedspecial.report.comparison import MeanStd
from fedspecial.runs import directory
from fedspecial.runs.jobs import Job, settings_key

COARSE = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
Curve = Mapping[float, MeanStd]


@dataclass(frozen=True)
class Search:
    """A search for λ: the other settings, the seeds, the fraction of samples held out, and the run directories."""

    settings: Settings
    seeds: tuple[int, ...]
    holdout: float
    out: Path

    def __post_init__(self) -> None:
        for key in ("lam", "mu", "seed", "holdout", "out"):
            if key in self.settings:
                raise InputError(f"{key}={self.settings[key]}: not allowed here, the search sets it")
        if not 0 < self.holdout < 1:
            raise InputError(f"holdout={self.holdout}: must be greater than 0 and less than 1")

    def runs(self, values: Sequence[float]) -> list[Job]:
        return [self.job(lam, seed) for lam in values for seed in self.seeds]

    def job(self, lam: float, seed: int) -> Job:
        settings = merge_settings({**self.settings, "lam": lam, "holdout": self.holdout, "seed": seed})
        folder = self.out / "runs" / f"{settings['method']}-lam-{lam:g}-{seed}-{settings_key(settings)}"
        return Job(str(settings["method"]), seed, {**settings, "out": str(folder)}, folder)


def fine(curve: Curve) -> tuple[float, ...]:
    """Three values between the best λ and the better of its two neighbours."""
    xs = sorted(curve)
    at = xs.index(best(curve))
    neighbours = [xs[i] for i in (at - 1, at + 1) if 0 <= i < len(xs)]
    other = max(neighbours, key=lambda x: curve[x].mean)
    low, high = sorted((xs[at], other))
    return tuple(round(low + (high - low) * part / 4, 6) for part in (1, 2, 3))


def best(curve: Curve) -> float:
    """The λ with the highest mean; the smallest of them if several are equal."""
    return max(sorted(curve), key=lambda x: curve[x].mean)


def read_curve(search: Search, values: Sequence[float]) -> dict[float, MeanStd]:
    """Mean and standard deviation of ACC on the held-out samples for each λ; the runs must be finished."""
    curve = {}
    for lam in values:
        results = [directory.finished(search.job(lam, seed).folder) for seed in search.seeds]
        value = MeanStd.of(result.acc for result in results if result is not None)
        if value is not None:
            curve[lam] = value
    return curve


def preset_of(search: Search, lam: float) -> dict[str, Any]:
    """The given settings and λ; all other settings come from the benchmark's preset."""
    method = str(search.settings.get("method", Config().method))
    return {**search.settings, "method": method, "lam": lam}


def write_preset(search: Search, curve: Curve) -> Path:
    """Write a settings file for ``fedspecial run FILE``, with the curve as a comment."""
    lam = best(curve)
    points = "\n".join(f"#   λ = {x:<5g} {100 * curve[x].mean:.2f}" for x in sorted(curve))
    head = (
        f"# λ from a two-stage search; validation on a fraction {search.holdout:g} of the training samples; seeds "
        f"{', '.join(map(str, search.seeds))}. Mean ACC in per cent:\n{points}\n"
    )
    path = search.out / "preset.yaml"
    body = yaml.safe_dump(preset_of(search, lam), sort_keys=False, allow_unicode=True)
    write_atomic(path, (head + body).encode())
    return path
