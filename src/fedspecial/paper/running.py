"""Running studies: the runs they need, each once, and how far they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedspecial import methods
from fedspecial.paper.grid import Ask, job_of, missing_domains, points, seconds_of
from fedspecial.paper.registry import find
from fedspecial.paper.scales import SCALES
from fedspecial.runs.jobs import Job


@dataclass(frozen=True)
class Plan:
    """All runs of the studies asked for, each once, and what is left out and why.

    seconds: about how long each takes on one core, where that is known
    """

    jobs: tuple[Job, ...]
    seconds: tuple[float, ...]
    left_out: tuple[str, ...]
    rates: tuple[str, ...]


Absent = dict[tuple[str, str], str | None]


def plan(asks: Iterable[Ask], out: Path, data: str | None, absent: Absent | None = None) -> Plan:
    """All is checked before the first run begins. Seeds come in turn, so that a stopped study is of use.

    absent: why a (scale, benchmark) cannot be run, as far as that is known; it is filled in
    """
    jobs: dict[Path, tuple[int, Job, float]] = {}
    left_out: dict[str, None] = {}
    rates: dict[str, None] = {}
    absent = {} if absent is None else absent
    for ask in asks:
        study = find(ask.study)
        rates |= dict.fromkeys(study.rates)
        seeds = study.seeds or ask.seeds
        for point in points(study, ask):
            place = (ask.scale, point.benchmark)
            if place not in absent:
                absent[place] = why_absent(ask.scale, point.benchmark, data)
            reason = absent[place]
            if point.row.method not in methods.names():
                reason = f"method {point.row.method}: it is not part of this installation"
            if reason is not None:
                left_out[reason] = None
                continue
            for order, seed in enumerate(seeds):
                job = job_of(study, point, ask.scale, seed, out, data)
                jobs.setdefault(job.folder, (order, job, seconds_of(job, point, ask.scale) or 3600.0))
    ordered = sorted(jobs.values(), key=lambda entry: entry[0])
    return Plan(
        tuple(job for _, job, _ in ordered),
        tuple(seconds for _, _, seconds in ordered),
        tuple(left_out),
        tuple(rates),
    )


def why_absent(scale: str, benchmark: str, data: str | None = None) -> str | None:
    """Why a benchmark cannot be run here, or None if its files are there."""
    setting = SCALES[scale][benchmark]
    missing = missing_domains(setting.settings, Path(data) if data else None)
    return f"{setting.label}: its files are not on disk ({', '.join(missing)})" if missing else None
