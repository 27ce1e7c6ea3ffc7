"""Choosing λ with the paper's two-stage search, on validation data split from the training data.

The coarse stage tries λ = 0, 0.2, …, 1. The fine stage tries three values between the best λ and the better of its two
neighbours, or beyond 1 where 1 is the best. Test data is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import yaml

from fedspecial.config import Config, Settings, merge_settings, refuse_unread_data
from fedspecial.config.paths import short_name
from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.metrics.statistics import MIN_SEEDS, directions, t_interval
from fedspecial.report.comparison import MeanStd
from fedspecial.report.scale import ACCURACY, Scale
from fedspecial.runs import directory
from fedspecial.runs.jobs import Job, each_once, progress_shown, run_missing, settings_key
from fedspecial.runs.main_guard import refuse_in_starting_process

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
    """The result of `tune`.

    lam:    the chosen λ
    curve:  for each λ, ACC on the held-out samples: mean and standard deviation over the seeds
    bwt:    the same for BWT; without a λ for which it is not defined
    gains:  for each other λ, ACC minus ACC of λ = 0, seed by seed
    preset: the settings file for ``fedspecial run``
    scale:  how values of the main metric are written
    """

    lam: float
    curve: Curve
    preset: Path
    bwt: Curve
    gains: Mapping[float, Sequence[float]]
    scale: Scale = ACCURACY

    @property
    def verdict(self) -> str:
        """Whether the chosen λ is clearly better than no anchor, in one sentence."""
        if self.lam == 0:
            return "no λ is better than 0: on this data, SPECIAL has no advantage over FedAvg in ACC; look at BWT too"
        gains = self.gains[self.lam]
        mean = self.scale.change(fmean(gains)) + (" points" if self.scale.in_percent else "")
        if len(gains) < MIN_SEEDS:
            seeds = f"{len(gains)} seeds" if len(gains) > 1 else "1 seed"
            return (
                f"ACC is {mean} from that of λ = 0 (mean over {seeds}); it takes at least {MIN_SEEDS} seeds to tell "
                "this from chance"
            )
        interval = t_interval(gains)
        assert interval is not None
        ends = f"[{self.scale.change(interval.low)} … {self.scale.change(interval.high)}]"
        spread = f"{mean} {ends} over {len(gains)} seeds"
        clear = dict(zip(self.gains, directions(list(self.gains.values())), strict=True))
        if clear[self.lam] > 0:
            return f"λ = {self.lam:g} is better than 0: ACC {spread}"
        return (
            f"no λ is clearly better than 0: the best has ACC {spread}, which is within chance for {len(clear)} values "
            "of λ; look at BWT too"
        )


def tune(
    benchmark: str = "digits-shift",
    method: str = "special",
    seeds: Sequence[int] = (25,),
    *,
    holdout: float = 0.2,
    jobs: int | None = None,
    out: str | Path | None = None,
    run_jobs: Callable[[str, Sequence[Job]], None] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Tuned:
    """Choose λ with the paper's two-stage search on held-out training data; the test data is not used.

    Args:
        benchmark: a name, or ``file.py:function``.
        method: "special" or "special-c".
        seeds: every λ is tried with each seed.
        holdout: fraction of the training samples used for validation.
        jobs: how many runs at the same time; as many as there are cores if not given.
        out: folder of the runs and of ``preset.yaml``; ``tune/BENCHMARK`` if not given. Finished runs are reused.
        run_jobs: called with "coarse" or "fine" and the runs of that stage, to execute them and show progress.
        progress: show a bar on a terminal or in a notebook, on standard error; not with `run_jobs`.
        **settings: settings of all runs, such as ``rounds=10``.

    Returns:
        The chosen λ, ACC and BWT for each λ with their spread over the seeds, whether the choice is clearly better than
        λ = 0 (`verdict`), and the path of a settings file for ``fedspecial run``.

    Examples:
        >>> import fedspecial
        >>> tuned = fedspecial.tune("digits-shift", rounds=4)  # doctest: +SKIP
        >>> fedspecial.run(config=tuned.preset)  # doctest: +SKIP
    """
    refuse_in_starting_process()
    if not isinstance(benchmark, str):
        raise InputError(
            f"benchmark: a Python object ({type(benchmark).__name__}), and tune takes a name; write a function that "
            "returns the benchmark, and give file.py:function"
        )
    if method not in ("special", "special-c"):
        raise InputError(f"method={method}: only special and special-c have λ")
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs={jobs}: must be at least 1")
    refuse_unread_data({**settings, "benchmark": benchmark})
    seeds = each_once("seeds", seeds, "25, 225")
    folder = Path(out) if out is not None else Path("tune") / short_name(benchmark)
    search = Search({"benchmark": benchmark, **settings, "method": method}, tuple(seeds), holdout, folder)

    curve: dict[float, MeanStd] = {}
    for stage in ("coarse", "fine"):
        values = COARSE if stage == "coarse" else fine(curve)
        planned = search.runs(values)
        if run_jobs is not None:
            run_jobs(stage, planned)
        else:
            with progress_shown(planned, progress) as tick:
                run_missing(planned, jobs, tick)
        curve |= read_curve(search, values)
    result = directory.finished(search.job(best(curve), search.seeds[0]).folder)
    scale = ACCURACY if result is None else result.scale
    preset = write_preset(search, curve, scale)
    bwt = read_curve(search, list(curve), "bwt")
    return Tuned(best(curve), curve, preset, bwt, {lam: gains(search, lam) for lam in curve if lam > 0}, scale)


BEYOND = (1.25, 1.5, 2.0)
"""What the fine stage tries where the best λ is the largest one of the coarse stage."""


def fine(curve: Curve) -> tuple[float, ...]:
    """Three values between the best λ and the better of its two neighbours; larger ones if the largest is the best."""
    xs = sorted(curve)
    at = xs.index(best(curve))
    if xs[at] == COARSE[-1]:
        return BEYOND
    neighbours = [xs[i] for i in (at - 1, at + 1) if 0 <= i < len(xs)]
    other = max(neighbours, key=lambda x: curve[x].mean)
    low, high = sorted((xs[at], other))
    return tuple(round(low + (high - low) * part / 4, 6) for part in (1, 2, 3))


def best(curve: Curve) -> float:
    """The λ with the highest mean; the smallest of them if several are equal."""
    return max(sorted(curve), key=lambda x: curve[x].mean)


def gains(search: Search, lam: float) -> list[float]:
    """ACC with this λ minus ACC with λ = 0 for each seed: both have the same clients, data and initial model."""
    pairs = [[directory.finished(search.job(x, seed).folder) for x in (lam, 0.0)] for seed in search.seeds]
    return [
        ours.acc - none.acc
        for ours, none in pairs
        if ours is not None and none is not None and ours.acc is not None and none.acc is not None
    ]


def read_curve(search: Search, values: Sequence[float], metric: Literal["acc", "bwt"] = "acc") -> dict[float, MeanStd]:
    """Mean and standard deviation of ACC or BWT on the held-out samples for each λ; the runs must be finished."""
    curve = {}
    for lam in values:
        results = [directory.finished(search.job(lam, seed).folder) for seed in search.seeds]
        value = MeanStd.of(getattr(result, metric) for result in results if result is not None)
        if value is not None:
            curve[lam] = value
    return curve


def preset_of(search: Search, lam: float) -> dict[str, Any]:
    """The given settings and λ; all other settings come from the benchmark's preset."""
    method = str(search.settings.get("method", Config().method))
    return {**search.settings, "method": method, "lam": lam}


def write_preset(search: Search, curve: Curve, scale: Scale) -> Path:
    """Write a settings file for ``fedspecial run FILE``, with the curve as a comment."""
    lam = best(curve)
    points = "\n".join(f"#   λ = {x:<5g} {scale.text(curve[x].mean)}" for x in sorted(curve))
    unit = "in per cent" if scale.in_percent else f"({scale.title})"
    head = (
        f"# λ from a two-stage search; validation on a fraction {search.holdout:g} of the training samples; seeds "
        f"{', '.join(map(str, search.seeds))}. Mean ACC {unit}:\n{points}\n"
    )
    path = search.out / "preset.yaml"
    body = yaml.safe_dump(preset_of(search, lam), sort_keys=False, allow_unicode=True)
    write_atomic(path, (head + body).encode())
    return path
