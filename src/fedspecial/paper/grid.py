"""From a study to its runs. A run's folder is a function of its words, so studies share runs without knowing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedspecial import methods
from fedspecial.config import Settings, merge_settings
from fedspecial.errors import InputError, did_you_mean
from fedspecial.paper.metrics import Run, metric
from fedspecial.paper.published import printed
from fedspecial.paper.scales import SCALES, TIMES_FEDAVG, Setting
from fedspecial.paper.spec import Row, Study
from fedspecial.report.comparison import Spread
from fedspecial.runs.jobs import Job, settings_key

SEEDS = (25, 225, 2025)


@dataclass(frozen=True)
class Ask:
    """What was asked of a study; None stands for all there is."""

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
class Point:
    """One cell of a study's grid: a benchmark, a row, and a value of what is swept."""

    benchmark: str
    row: Row
    x: float | None = None


def points(study: Study, ask: Ask) -> list[Point]:
    """The whole grid of what was asked, also the methods that are not there."""
    if ask.scale not in study.benchmarks:
        raise InputError(f"scale={ask.scale}: study '{study.name}' has only {', '.join(study.scales)}")
    known = study.benchmarks[ask.scale]
    for name in ask.benchmarks or ():
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"benchmarks={name}: study '{study.name}' has {listed} at scale {ask.scale}")
    rows = [row for row in study.rows if ask.methods is None or row.method in ask.methods]
    for name in ask.methods or ():
        if name not in methods.names():
            raise InputError(f"methods={name}: there is no such method{did_you_mean(name, methods.names())}")
    values: Sequence[float | None] = (None,) if study.sweep is None else study.sweep.values[ask.scale]
    return [
        Point(benchmark, row, x)
        for benchmark in known
        if ask.benchmarks is None or benchmark in ask.benchmarks
        for x in values
        for row in rows
    ]


def setting(point: Point, scale: str) -> Setting:
    return SCALES[scale][point.benchmark]


def settings_of(study: Study, point: Point, scale: str) -> Settings:
    """What a point asks for, but the seed."""
    base = setting(point, scale)
    tuned = base.tuned.get(point.row.method, {})
    settings = {**base.settings, **tuned, **dict(point.row.settings), "method": point.row.method}
    return settings | ({study.sweep.word: point.x} if study.sweep is not None else {})


@cache
def _merged(settings: str) -> Settings:
    """Settled words of a point given as JSON: studies share points, and reading a preset takes its time."""
    return merge_settings(json.loads(settings))


def job_of(study: Study, point: Point, scale: str, seed: int, out: Path, data: str | None = None) -> Job:
    """The run of a point and a seed, and where it is or will be."""
    settings = {**_merged(json.dumps(settings_of(study, point, scale))), "seed": seed}
    folder = out / "runs" / f"{point.benchmark}-{point.row.method}-{seed}-{settings_key(settings)}"
    where = {} if data is None else {"data": data}
    return Job(point.row.method, seed, {**settings, **where, "out": str(folder)}, folder)


def seconds_of(job: Job, point: Point, scale: str) -> float | None:
    """About how long a run takes on one core: a measured FedAvg run, scaled by what differs from it."""
    base = setting(point, scale)
    if base.seconds is None:
        return None
    usual = _merged(json.dumps({**base.settings, "method": "fedavg"}))
    ratio = TIMES_FEDAVG.get(job.method, 1.0)
    for word in ("rounds", "local_epochs", "clients_per_round", "cap"):
        if word in usual:
            ratio *= float(job.settings[word]) / float(usual[word])
    return base.seconds * (0.3 + 0.7 * ratio)


def unregistered(study: Study) -> list[str]:
    """Methods of the study that this installation does not have."""
    return [name for name in dict.fromkeys(row.method for row in study.rows) if name not in methods.names()]


def missing_domains(settings: Mapping[str, Any], data: Path | None) -> list[str]:
    """Domains whose files are not there, as their headers and names tell."""
    from fedspecial.data import catalogue
    from fedspecial.data.check import found_sizes

    settings = merge_settings(settings)
    entry = catalogue.entry(str(settings["benchmark"]))
    if not entry.needs_data:
        return []
    found = found_sizes(entry.name, data)
    return [domain for domain in settings.get("domains") or entry.domains if domain not in found]


@dataclass(frozen=True)
class Evidence:
    """A study as far as it has been run."""

    study: Study
    ask: Ask
    runs: Mapping[Point, Mapping[int, Run]]
    absent: Mapping[str, str]
    """Benchmarks of which there is no run at all, and why."""
    rates: Mapping[str, Mapping[str, Any]]
    """The theory's sweeps that were run."""

    @property
    def benchmarks(self) -> list[str]:
        return list(dict.fromkeys(point.benchmark for point in self.runs))

    @property
    def finished(self) -> int:
        return sum(map(len, self.runs.values()))

    @property
    def wanted(self) -> int:
        return len(self.runs) * len(self.ask.seeds)

    def label(self, benchmark: str) -> str:
        return SCALES[self.ask.scale][benchmark].label

    def values(self, benchmark: str, row: str, x: float | None, key: str) -> dict[int, float]:
        """The metric by seed, in the unit in which it is shown."""
        for point, runs in self.runs.items():
            if (point.benchmark, point.row.key, point.x) == (benchmark, row, x):
                read = {seed: metric(key).read(run) for seed, run in runs.items()}
                return {seed: metric(key).scale * value for seed, value in read.items() if value is not None}
        return {}

    def spread(self, benchmark: str, row: str, x: float | None, key: str) -> Spread | None:
        return Spread.of(self.values(benchmark, row, x, key).values())

    def printed(self, benchmark: str, row: str, x: float | None, key: str) -> Spread | None:
        where = SCALES[self.ask.scale][benchmark].printed_as or benchmark
        found = (printed(study, where, x, row, key) for study in self.study.printed_in or (self.study.name,))
        return next((value for value in found if value is not None), None)


Reader = Callable[[Path], Run | None]


def gather(
    study: Study,
    ask: Ask,
    out: Path,
    read: Reader,
    why_absent: Callable[[str], str],
    rates: Mapping[str, Mapping[str, Any]],
) -> Evidence:
    """What is there of a study in a folder of studies."""
    ask = ask if study.seeds is None else replace(ask, seeds=study.seeds)
    there = methods.names()
    runs: dict[Point, dict[int, Run]] = {}
    for point in points(study, ask):
        found = {}
        for seed in ask.seeds if point.row.method in there else ():
            run = read(job_of(study, point, ask.scale, seed, out).folder)
            if run is not None:
                found[seed] = run
        runs[point] = found
    begun = {point.benchmark for point, found in runs.items() if found}
    idle = dict.fromkeys(point.benchmark for point in runs if point.benchmark not in begun)
    absent = {benchmark: why_absent(benchmark) for benchmark in idle}
    return Evidence(study, ask, runs, absent, rates)
