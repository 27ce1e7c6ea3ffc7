"""Choosing λ with the paper's two-stage search, on validation data split from the training data.

The coarse stage tries λ = 0, 0.2, …, 1. The fine stage tries three values between the best λ and the better of its two
neighbours. Test data is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedspecial.config import Config, Settings, merge_settings
from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.report.comparison import MeanStd
from fedspecial.runs import directory
from fedspecial.runs.jobs import Job, parallel_runs, run_missing, settings_key

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


@dataclass(frozen=True)
class Tuned:
    """The result of `tune`: the chosen λ, the mean ACC on held-out samples for each λ, and the settings file."""

    lam: float
    curve: Curve
    preset: Path


def tune(
    benchmark: str = "digits-shift",
    method: str = "special",
    seeds: Sequence[int] = (25,),
    *,
    holdout: float = 0.2,
    jobs: int | None = None,
    out: str | Path | None = None,
    run_jobs: Callable[[str, Sequence[Job]], None] | None = None,
    **settings: Any,
) -> Tuned:
    """Choose λ with the paper's two-stage search on held-out training data; the test data is not used.

    Args:
        benchmark: a name, or ``file.py:function``.
        method: "special" or "special-c".
        seeds: every λ is tried with each seed.
        holdout: fraction of the training samples used for validation.
        jobs: how many runs at the same time; as many as there are cores without it.
        out: folder of the runs and of ``preset.yaml``; ``tune/BENCHMARK`` without it. Finished runs are reused.
        run_jobs: called with "coarse" or "fine" and the runs of that stage, to execute them and show progress.
        **settings: settings of all runs, such as ``rounds=10``.

    Returns:
        The chosen λ, the curve, and the path of a settings file for ``fedspecial run``.

    Example:
        >>> import fedspecial
        >>> tuned = fedspecial.tune("digits-shift", rounds=4)  # doctest: +SKIP
        >>> fedspecial.run(config=tuned.preset)  # doctest: +SKIP
    """
    if method not in ("special", "special-c"):
        raise InputError(f"method={method}: only special and special-c have λ")
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs={jobs}: must be at least 1")
    folder = Path(out) if out is not None else Path("tune") / benchmark
    search = Search({"benchmark": benchmark, **settings, "method": method}, tuple(seeds), holdout, folder)

    curve: dict[float, MeanStd] = {}
    for stage in ("coarse", "fine"):
        values = COARSE if stage == "coarse" else fine(curve)
        planned = search.runs(values)
        if run_jobs is not None:
            run_jobs(stage, planned)
        else:
            run_missing(planned, jobs or parallel_runs(planned), lambda: None)
        curve |= read_curve(search, values)
    return Tuned(best(curve), curve, write_preset(search, curve))


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
