"""Several methods and seeds on the same federation, and what they come to: mean ± standard deviation."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial import methods
from fedspecial.config import Config, Settings, merge_settings, preset_settings, resolve, unknown_setting
from fedspecial.data import catalogue
from fedspecial.errors import InputError
from fedspecial.runs import directory as directory

if TYPE_CHECKING:
    from fedspecial.report.result import Result


@dataclass(frozen=True)
class Job:
    """One run of a comparison: its words and where it goes."""

    method: str
    seed: int
    settings: Settings
    folder: Path


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


def run_missing(
    jobs: Sequence[Job],
    parallel: int,
    tick: Callable[[], None],
    failed: Callable[[Job, Exception], None] | None = None,
) -> None:
    """Runs what is missing and goes on with what was stopped, `parallel` runs side by side.

    `tick` is called about four times a second, to show progress from the runs' own event files. A run that fails ends
    all of them, or is told to `failed` and the others go on.
    """
    for job in jobs:
        _check_found(job)
    left = [job for job in jobs if not (job.folder / "result.json").exists()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, min(parallel, len(left))), mp_context=context, initializer=_deaf) as pool:
        futures: dict[Future[None], Job] = {pool.submit(_work, job): job for job in left}
        try:
            while futures:
                done, _ = wait(futures, timeout=0.25, return_when="FIRST_COMPLETED")
                tick()
                for future in done:
                    job, error = futures.pop(future), future.exception()
                    if error is not None and (failed is None or not isinstance(error, Exception)):
                        raise error
                    if error is not None and failed is not None:
                        failed(job, error)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _deaf() -> None:
    """Ctrl-C is for the process that started the runs; it ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(job: Job) -> None:
    from fedspecial.runs.api import resume

    if job.folder.exists():
        resume(job.folder)
        return
    with directory.created(job.settings) as folder:
        resume(folder)


def _check_found(job: Job) -> None:
    """Refuse a run on disk that was asked for with other words than the ones wanted now."""
    if not job.folder.exists():
        return
    found = resolve(directory.settings(job.folder)).settings()
    # Where the data comes from sites, they took the place of these words.
    ignored = {"out", "clients", "partition"} if found["partition"] == "sites" else {"out"}
    for key, value in resolve(job.settings).settings().items():
        if key not in ignored and found.get(key) != value:
            raise InputError(
                f"out={job.folder}: it holds a run with {key}={found.get(key)}, not {key}={value}; name another folder"
            )


def progress(jobs: Sequence[Job]) -> tuple[int, int | None]:
    """Rounds done by all runs, counted in their event files, and rounds in all (None until one has begun)."""
    done, each = 0, None
    for job in jobs:
        path = job.folder / "events.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        done += sum(line.startswith(b'{"event": "round"') for line in lines)
        if lines and each is None:
            started = json.loads(lines[0])
            each = len(started["tasks"]) * started["rounds"]
    return done, None if each is None else each * len(jobs)


def cores(threads: int) -> int:
    """How many runs fit side by side."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available // threads)
