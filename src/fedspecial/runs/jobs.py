"""Running many runs: a `Job` is one run with its settings and its directory. `compare`, `tune` and studies use this."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial.config import EXECUTION, Settings, resolve
from fedspecial.errors import InputError
from fedspecial.report.progress_line import JobsLine, can_show
from fedspecial.runs import directory
from fedspecial.runs.api import new_run, resume
from fedspecial.runs.job_pools import open_pool
from fedspecial.runs.main_guard import ADVICE
from fedspecial.runs.objects import Objects

if TYPE_CHECKING:
    from fedspecial.objectives.base import Objective


LOCAL = frozenset({"out", "data", *EXECUTION})
"""Settings that say where files are and how a run is executed; they do not change its result."""


@dataclass(frozen=True)
class Job:
    """One of several runs: its settings and its run directory."""

    method: str
    seed: int
    settings: Settings
    folder: Path


def each_once(key: str, values: object, example: str) -> list[Any]:
    """The items of a list that must not be empty and contains nothing twice; a text is not a list of its letters."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{key}={values}: expected a list, such as {key}=[{example}]")
    found = list(values)
    if not found or len(set(found)) < len(found):
        raise InputError(f"{key}={','.join(map(str, found))}: give at least one, and each only once")
    return found


def identity(settings: Settings) -> Settings:
    """The settings that determine the result of a run, defaults included, as they are stored in JSON."""
    seed = {"seed": settings["seed"]} if "seed" in settings else {}
    return {**_resolved(json.dumps({k: v for k, v in settings.items() if k not in {*LOCAL, *seed}})), **seed}


@cache
def _resolved(settings: str) -> Settings:
    """Read once for all seeds: studies look for hundreds of runs, and resolving settings is slow."""
    kept = {key: value for key, value in resolve(json.loads(settings)).flat().items() if key not in LOCAL}
    return dict(json.loads(json.dumps(kept)))


def settings_key(settings: Settings) -> str:
    """A hash of all settings, defaults included, except where files are and how the run is executed."""
    return hashlib.sha256(json.dumps(identity(settings), sort_keys=True).encode()).hexdigest()[:12]


def run_missing(
    jobs: Sequence[Job],
    parallel: int | None,
    tick: Callable[[], None],
    failed: Callable[[Job, Exception], None] | None = None,
    started: Callable[[int], None] | None = None,
    gpus: Sequence[str] = (),
) -> None:
    """Start the runs that do not exist yet and resume the unfinished ones, `parallel` at a time.

    Without `parallel`, as many as fit on the cores of this machine, or with ``engine=ray`` on the cluster; `started`
    is called with this number. `tick` is called about four times a second, for a progress display. When a run fails,
    `failed` is called and the other runs continue; without `failed` the error stops all of them. With `gpus`, each
    run sees one of them.
    """
    for job in jobs:
        _check_existing(job)
    left = [job for job in jobs if not (job.folder / "result.json").exists()]
    with open_pool(left, parallel, run_or_resume, gpus) as pool:
        if started is not None:
            started(pool.size)
        futures: dict[Future[None], Job] = {}
        try:
            while left or futures:
                while left and len(futures) < pool.size:
                    job = left.pop(0)
                    futures[pool.submit(job)] = job
                done, _ = wait(futures, timeout=0.25, return_when="FIRST_COMPLETED")
                tick()
                for future in done:
                    _report(futures.pop(future), future, failed)
        except BaseException:
            pool.stop()
            raise


def _report(job: Job, future: Future[None], failed: Callable[[Job, Exception], None] | None) -> None:
    error = future.exception()
    # Ray wraps the exception of a task in one of its own.
    error = getattr(error, "cause", None) or error
    if error is None:
        return
    if isinstance(error, BrokenExecutor):
        error = InputError(
            f"{job.folder}: a process that executes runs was killed, or ended while it started; finished runs are "
            f"kept, so repeat the call; {ADVICE}"
        )
    if failed is None or not isinstance(error, Exception):
        raise error
    failed(job, error)


def run_in_process(jobs: Sequence[Job], objects: Objects, tick: Callable[[], None]) -> None:
    """Like `run_missing`, one run after another in this process, for runs that need Python objects."""
    for job in jobs:
        _check_existing(job, objects.objective)
    for job in jobs:
        run_or_resume(job, objects)
        tick()


def run_or_resume(job: Job, objects: Objects = Objects()) -> None:
    """Start the run, or resume it if its directory exists."""
    given: Any = {"benchmark": objects.benchmark, "model": objects.model, "objective": objects.objective}
    if job.folder.exists():
        execution = {key: value for key, value in job.settings.items() if key in EXECUTION}
        resume(job.folder, **given, progress=False, **execution)
        return
    with new_run(job.settings) as folder:
        resume(folder, **given, progress=False)


def _check_existing(job: Job, objective: Objective | None = None) -> None:
    """Refuse an existing run directory whose settings differ from those of the job."""
    if not job.folder.exists():
        return
    found = resolve(directory.settings(job.folder), objective=objective).flat()
    # With data from sites, the sites determine these settings.
    ignored = {"out", *EXECUTION} | ({"clients", "partition"} if found["partition"] == "sites" else set())
    for key, value in resolve(job.settings, objective=objective).flat().items():
        if key not in ignored and found.get(key) != value:
            raise InputError(
                f"out={job.folder}: it contains a run with {key}={found.get(key)}, not {key}={value}; "
                "choose another directory"
            )


def rounds_of(job: Job) -> tuple[int, int | None]:
    """Rounds finished and rounds in total, from the event log; the total is None before the run has started."""
    path = job.folder / "events.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    if not lines:
        return 0, None
    started = json.loads(lines[0])
    done = sum(line.startswith(b'{"event": "round"') for line in lines)
    return done, len(started.get("visits") or started["tasks"]) * started["rounds"]


def progress(jobs: Sequence[Job]) -> tuple[int, int | None]:
    """Rounds finished by all runs of a comparison, and their total (None until the first has started)."""
    rounds = [rounds_of(job) for job in jobs]
    each = next((total for _, total in rounds if total is not None), None)
    return sum(done for done, _ in rounds), None if each is None else each * len(jobs)


@contextmanager
def progress_shown(jobs: Sequence[Job], wanted: bool) -> Iterator[Callable[[], None]]:
    """A function for `tick` that shows a line on a terminal or in a notebook, and elsewhere nothing."""
    if not wanted or not can_show(sys.stderr):
        yield lambda: None
        return
    line = JobsLine(len(jobs))
    try:
        yield lambda: line.update(*progress(jobs))
    finally:
        line.close()


@dataclass
class TimeEstimate:
    """Progress of runs that take different times: the share of the work done and the seconds left.

    The work of a run is its expected time. The speed is measured from the work done since the start.
    """

    jobs: Sequence[Job]
    seconds: Sequence[float]
    parallel: int = 1
    began: float = field(default_factory=time.monotonic)
    finished: set[int] = field(default_factory=set)
    _at_start: float | None = None

    def update(self) -> tuple[list[Job], float, float]:
        """Runs that finished since the last call, the share of the work done, and the seconds left."""
        new, done = [], 0.0
        for number, (job, cost) in enumerate(zip(self.jobs, self.seconds, strict=True)):
            if number not in self.finished and (job.folder / "result.json").exists():
                self.finished.add(number)
                new.append(job)
            done += cost if number in self.finished else cost * _share_done(job)
        total = sum(self.seconds)
        if self._at_start is None:
            self._at_start = done
        elapsed, worked = time.monotonic() - self.began, done - self._at_start
        speed = worked / elapsed if elapsed > 20 and worked > 0 else self.parallel
        return new, done / total if total else 1.0, (total - done) / speed


def _share_done(job: Job) -> float:
    done, total = rounds_of(job)
    return done / total if total else 0.0
