"""The runs of a study. The directory of a run is determined by its settings, so studies share runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedspecial import methods
from fedspecial.config import Settings, merge_settings
from fedspecial.data import catalogue
from fedspecial.errors import InputError, did_you_mean
from fedspecial.paper.metrics import FinishedRun, metric
from fedspecial.paper.published import published_value
from fedspecial.paper.scales import SCALES, TIMES_FEDAVG
from fedspecial.paper.spec import Row, Study
from fedspecial.report.comparison import MeanStd
from fedspecial.runs.jobs import Job, settings_key

SEEDS = (25, 225, 2025, 2125, 22025)
"""The three seeds of the paper and two more, because fewer than five decide no claim; chosen before any run."""
Tuning = Mapping[tuple[str, str], Mapping[str, Settings]]
"""The settings that a search chose, by method, for each (scale, benchmark) that was searched."""


@dataclass(frozen=True)
class StudyRequest:
    """The part of a study that the user requested; None means all benchmarks or methods."""

    study: str
    scale: str
    seeds: tuple[int, ...] = SEEDS
    benchmarks: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None

    @property
    def command(self) -> str:
        settings = ["fedspecial study", self.study, "--scale", self.scale]
        settings += ["--seeds", ",".join(map(str, self.seeds))]
        settings += ["--benchmarks", ",".join(self.benchmarks)] if self.benchmarks else []
        settings += ["--methods", ",".join(self.methods)] if self.methods else []
        return " ".join(settings)


@dataclass(frozen=True)
class GridPoint:
    """One cell of the grid of a study: a benchmark, a row, and a swept value."""

    benchmark: str
    row: Row
    x: float | None = None


def grid_points(study: Study, request: StudyRequest) -> list[GridPoint]:
    """All grid points of a request, including those of methods that are not installed."""
    if request.scale not in study.benchmarks:
        raise InputError(
            f"scale={request.scale}: study '{study.name}' is available only at scale {', '.join(study.scales)}"
        )
    known = study.benchmarks[request.scale]
    for name in request.benchmarks or ():
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"benchmarks={name}: study '{study.name}' has {listed} at scale {request.scale}")
    rows = [row for row in study.rows if request.methods is None or row.method in request.methods]
    for name in request.methods or ():
        if name not in methods.names():
            raise InputError(f"methods={name}: unknown method{did_you_mean(name, methods.names())}")
    values: Sequence[float | None] = (None,) if study.sweep is None else study.sweep.values[request.scale]
    return [
        GridPoint(benchmark, row, x)
        for benchmark in known
        if request.benchmarks is None or benchmark in request.benchmarks
        for x in values
        for row in rows
        if row.settings_at(request.scale, benchmark) is not None
    ]


def tuned_settings(study: Study, point: GridPoint, scale: str, tuning: Tuning) -> Settings | None:
    """The settings that a search chose for the method of a grid point, or None if there was none."""
    if scale in study.variant:
        return None
    return tuning.get((scale, point.benchmark), {}).get(point.row.method)


def _base(study: Study, benchmark: str, scale: str) -> Settings:
    """The settings of a benchmark in a study, before those of the method."""
    other = study.variant[scale].settings if scale in study.variant else {}
    return {**SCALES[scale][benchmark].settings, **other}


def settings_of(study: Study, point: GridPoint, scale: str, tuning: Tuning) -> Settings:
    """The settings of a grid point, without the seed."""
    tuned = tuned_settings(study, point, scale, tuning) or {}
    own = point.row.settings_at(scale, point.benchmark) or {}
    settings = {**_base(study, point.benchmark, scale), **tuned, **own, "method": point.row.method}
    return settings | ({study.sweep.setting: point.x} if study.sweep is not None else {})


@cache
def _merged(settings: str) -> Settings:
    """Merged settings of a grid point, cached by their JSON: studies share points, and reading a preset is slow."""
    return merge_settings(json.loads(settings))


def merged_settings(study: Study, point: GridPoint, scale: str, tuning: Tuning) -> Settings:
    """The settings of a grid point together with those of its preset, without the seed."""
    return _merged(json.dumps(settings_of(study, point, scale, tuning)))


def job_of(
    study: Study, point: GridPoint, scale: str, seed: int, out: Path, tuning: Tuning, data: str | None = None
) -> Job:
    """The run of a grid point with a seed, and its directory."""
    settings = {**merged_settings(study, point, scale, tuning), "seed": seed}
    folder = run_folder(out, point.benchmark, point.row.method, seed, settings)
    where = {} if data is None else {"data": data}
    return Job(point.row.method, seed, {**settings, **where, "out": str(folder)}, folder)


def run_folder(out: Path, benchmark: str, method: str, seed: int, settings: Settings) -> Path:
    """The directory of a run, determined by its settings."""
    return out / "runs" / f"{benchmark}-{method}-{seed}-{settings_key(settings)}"


def seconds_of(
    job: Job, benchmark: str, scale: str, study: Study | None = None, times: float = 1.0, timed: float | None = None
) -> float | None:
    """Estimated duration of a run: that of a measured FedAvg run on one core, scaled by the settings that differ.

    times: further factor of the row
    timed: duration of a run of the method with the settings of the benchmark, if it was measured on this machine
    """
    base, seconds = dict(SCALES[scale][benchmark].settings), SCALES[scale][benchmark].seconds
    if study is not None and scale in study.variant:
        base, seconds, timed = _base(study, benchmark, scale), study.variant[scale].seconds, None
    whole = seconds if timed is None else timed
    if whole is None:
        return None
    reference = _merged(json.dumps({**base, "method": "fedavg"}))
    ratio = times * (TIMES_FEDAVG.get(job.method, 1.0) if timed is None else 1.0)
    if job.method == "joint" and timed is None:  # every task has the samples of all domains
        ratio *= len(job.settings.get("domains") or catalogue.entry(str(job.settings["benchmark"])).domains)
    for key in ("rounds", "local_epochs", "local_steps", "clients_per_round", "cap"):
        if reference.get(key) and job.settings.get(key):
            ratio *= float(job.settings[key]) / float(reference[key])
    return whole * (0.3 + 0.7 * ratio)


def missing_domains(settings: Mapping[str, Any], data: Path | None) -> list[str]:
    """Domains whose data files are missing, judged by file names and headers."""
    from fedspecial.data.check import found_sizes

    settings = merge_settings(settings)
    entry = catalogue.entry(str(settings["benchmark"]))
    if not entry.needs_data:
        return []
    found = found_sizes(entry.name, data)
    return [domain for domain in settings.get("domains") or entry.domains if domain not in found]


@dataclass(frozen=True)
class StudyResults:
    """The finished runs of a study."""

    study: Study
    request: StudyRequest
    runs: Mapping[GridPoint, Mapping[int, FinishedRun]]
    absent: Mapping[str, str]
    """Benchmarks without any run, with the reason."""
    rates: Mapping[str, Mapping[str, Any]]
    """The finished sweeps of the theory."""
    tuning: Tuning = field(default_factory=dict)

    @property
    def benchmarks(self) -> list[str]:
        return list(dict.fromkeys(point.benchmark for point in self.runs))

    @property
    def finished(self) -> int:
        return sum(map(len, self.runs.values()))

    @property
    def wanted(self) -> int:
        return len(self.runs) * len(self.request.seeds)

    def label(self, benchmark: str) -> str:
        return SCALES[self.request.scale][benchmark].label

    def values(self, benchmark: str, row: str, x: float | None, key: str) -> dict[int, float]:
        """The metric for each seed, in the unit of the tables."""
        for point, runs in self.runs.items():
            if (point.benchmark, point.row.key, point.x) == (benchmark, row, x):
                read = {seed: metric(key).read(run) for seed, run in runs.items()}
                return {seed: metric(key).scale * value for seed, value in read.items() if value is not None}
        return {}

    def measured(self, benchmark: str, row: str, x: float | None, key: str) -> MeanStd | None:
        return MeanStd.of(self.values(benchmark, row, x, key).values())

    def published(self, benchmark: str, row: str, x: float | None, key: str) -> MeanStd | None:
        where = SCALES[self.request.scale][benchmark].published_as or benchmark
        found = (published_value(study, where, x, row, key) for study in self.study.published_in or (self.study.name,))
        return next((value for value in found if value is not None), None)


Reader = Callable[[Job], FinishedRun | None]


def collect(
    study: Study,
    request: StudyRequest,
    out: Path,
    read: Reader,
    why_absent: Callable[[str], str],
    rates: Mapping[str, Mapping[str, Any]],
    tuning: Tuning,
) -> StudyResults:
    """Read the finished runs of a study from a directory of studies."""
    request = request if study.seeds is None else replace(request, seeds=study.seeds)
    installed = methods.names()
    runs: dict[GridPoint, dict[int, FinishedRun]] = {}
    for point in grid_points(study, request):
        found = {}
        for seed in request.seeds if point.row.method in installed else ():
            run = read(job_of(study, point, request.scale, seed, out, tuning))
            if run is not None:
                found[seed] = run
        runs[point] = found
    started = {point.benchmark for point, found in runs.items() if found}
    not_started = dict.fromkeys(point.benchmark for point in runs if point.benchmark not in started)
    absent = {benchmark: why_absent(benchmark) for benchmark in not_started}
    return StudyResults(study, request, runs, absent, rates, tuning)
