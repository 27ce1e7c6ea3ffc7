"""Planning studies: which runs they need, each once, and what cannot be run here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedspecial import methods
from fedspecial.config import merge_settings
from fedspecial.data import catalogue
from fedspecial.paper.grid import (
    StudyRequest,
    Tuning,
    grid_points,
    job_of,
    missing_domains,
    seconds_of,
    tuned_settings,
)
from fedspecial.paper.registry import find
from fedspecial.paper.scales import SCALES
from fedspecial.paper.throughput import Throughput, run_seconds
from fedspecial.runs.jobs import Job


@dataclass(frozen=True)
class StudyPlan:
    """All runs of the requested studies, each once, and what is skipped.

    seconds:  estimated duration of each run on one core
    skipped:  one line per benchmark or method that cannot be run, with the reason
    rates:    sweeps of the theory
    untuned:  one line per benchmark whose methods, or some of them, have the values of their presets
    unknown:  benchmarks and methods whose duration was never measured; their runs count as an hour each
    """

    jobs: tuple[Job, ...]
    seconds: tuple[float, ...]
    skipped: tuple[str, ...]
    rates: tuple[str, ...]
    untuned: tuple[str, ...]
    unknown: tuple[str, ...] = ()


Absent = dict[tuple[str, str], str | None]


def plan(
    requests: Iterable[StudyRequest],
    out: Path,
    data: str | None,
    tuning: Tuning,
    absent: Absent | None = None,
    throughput: Throughput | None = None,
) -> StudyPlan:
    """Check all requests before the first run starts. Runs are ordered by seed, so that a stopped study is usable.

    tuning: the settings that searches chose
    absent: the reason why a (scale, benchmark) cannot be run, or None if it can; a cache that this function fills
    throughput: durations that were measured on this machine
    """
    jobs: dict[Path, tuple[int, Job, float]] = {}
    skipped: dict[str, None] = {}
    rates: dict[str, None] = {}
    untuned: dict[str, dict[str, None]] = {}
    unknown: dict[str, None] = {}
    absent = {} if absent is None else absent
    for request in requests:
        study = find(request.study)
        rates |= dict.fromkeys(study.rates)
        seeds = study.seeds or request.seeds
        for point in grid_points(study, request):
            where = (request.scale, point.benchmark)
            if where not in absent:
                absent[where] = why_absent(request.scale, point.benchmark, data)
            reason = absent[where]
            if point.row.method not in methods.names():
                reason = f"method {point.row.method}: not installed"
            elif reason is None and not supports(request.scale, point.benchmark, point.row.method):
                reason = f"{SCALES[request.scale][point.benchmark].label}: {point.row.method} does not support its data"
            if reason is not None:
                skipped[reason] = None
                continue
            if tuned_settings(study, point, request.scale, tuning) is None:
                label = SCALES[request.scale][point.benchmark].label
                name = f"{label} in {study.name}" if request.scale in study.variant else label
                untuned.setdefault(name, {})[point.row.method] = None
            for order, seed in enumerate(seeds):
                job = job_of(study, point, request.scale, seed, out, tuning, data)
                timed = run_seconds(throughput or {}, request.scale, point.benchmark, point.row.method)
                cost = seconds_of(job, point.benchmark, request.scale, study, point.row.times, timed)
                unknown |= {} if cost is not None else {f"{point.benchmark} {point.row.method}": None}
                jobs.setdefault(job.folder, (order, job, cost or 3600.0))
    ordered = sorted(jobs.values(), key=lambda entry: entry[0])
    return StudyPlan(
        tuple(job for _, job, _ in ordered),
        tuple(seconds for _, _, seconds in ordered),
        tuple(skipped),
        tuple(rates),
        tuple(
            f"{label}: no search was recorded for {', '.join(names)}; values of the preset"
            for label, names in untuned.items()
        ),
        tuple(unknown),
    )


@cache
def supports(scale: str, benchmark: str, method: str) -> bool:
    """Whether a method works on the data of a benchmark."""
    kind = catalogue.entry(str(merge_settings(dict(SCALES[scale][benchmark].settings))["benchmark"])).kind
    return kind is None or kind in methods.find(method).kinds


def why_absent(scale: str, benchmark: str, data: str | None = None) -> str | None:
    """The reason why a benchmark cannot be run on this machine, or None if its data files exist."""
    benchmark_settings = SCALES[scale][benchmark]
    missing = missing_domains(benchmark_settings.settings, Path(data) if data else None)
    return f"{benchmark_settings.label}: data files not found ({', '.join(missing)})" if missing else None
