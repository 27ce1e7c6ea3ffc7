"""Several methods and seeds on the same federation, and what they come to: mean ± standard deviation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial import methods
from fedspecial.config import Config, merge_settings, preset_settings, resolve, unknown_setting
from fedspecial.data import catalogue
from fedspecial.errors import InputError
from fedspecial.runs.jobs import Job, run_missing

if TYPE_CHECKING:
    from fedspecial.report.result import Result


def plan(
    benchmark: str, names: Sequence[str], seeds: Sequence[int], settings: Mapping[str, Any], out: Path
) -> list[Job]:
    """All runs, checked before the first one begins. A method's own word goes only to methods that have it."""
    if len(set(names)) < len(names) or len(set(seeds)) < len(seeds):
        raise InputError(f"methods={','.join(names)} seeds={','.join(map(str, seeds))}: each can be given only once")
    own = {name: [field.name for field in fields(methods.find(name))] for name in names}
    common = {*Config.model_fields, *_reader_words(benchmark)}
    for key in settings:
        if key not in common and not any(key in fields for fields in own.values()):
            raise unknown_setting(key, ", ".join(names), sorted({field for fields in own.values() for field in fields}))
    jobs = []
    for name in names:
        mine = {k: v for k, v in settings.items() if k in common or k in own[name]}
        for seed in seeds:
            folder = out / f"{name.replace(':', '-').replace('/', '-')}-{seed}"
            given = {**mine, "benchmark": benchmark, "method": name, "seed": seed, "out": str(folder)}
            settings = merge_settings(given)
            resolve(settings)
            jobs.append(Job(name, seed, settings, folder))
    return jobs


def _reader_words(benchmark: str) -> Iterable[str]:
    """Settings that the benchmark's reader knows, such as a CSV's label column."""
    return catalogue.entry(str(preset_settings(benchmark).get("benchmark", benchmark))).options


def run_all(jobs: Sequence[Job], parallel: int, tick: Callable[[], None]) -> dict[str, list[Result]]:
    """Runs what is missing, goes on with what was stopped, and gives the results by method."""
    from fedspecial.runs.api import resume

    run_missing(jobs, parallel, tick)
    results: dict[str, list[Result]] = {}
    for job in jobs:
        results.setdefault(job.method, []).append(resume(job.folder))
    return results
