"""Running many runs: a `Job` is one run with its settings and its directory. `compare`, `tune` and studies use this."""

from __future__ import annotations

import copy
import hashlib
import json
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from fedspecial.config import EXECUTION, Settings, resolve
from fedspecial.errors import InputError
from fedspecial.runs import directory
from fedspecial.runs.api import Objects, new_run, resume
from fedspecial.runs.cores import available_cores, number_of_workers


@dataclass(frozen=True)
class Job:
    """One of several runs: its settings and its run directory."""

    method: str
    seed: int
    settings: Settings
    folder: Path


def settings_key(settings: Settings) -> str:
    """A hash of all settings, defaults included, except where files are and how the run is executed."""
    settings = {key: value for key, value in resolve(settings).flat().items() if key not in {"out", "data", *EXECUTION}}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def run_missing(
    jobs: Sequence[Job],
    parallel: int,
    tick: Callable[[], None],
    failed: Callable[[Job, Exception], None] | None = None,
) -> None:
    """Start the runs that do not exist yet and resume the unfinished ones, `parallel` at a time.

    `tick` is called about four times a second, for a progress display. When a run fails, `failed` is called and the
    other runs continue; without `failed` the error stops all of them.
    """
    for job in jobs:
        _check_existing(job)
    left = [job for job in jobs if not (job.folder / "result.json").exists()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, min(parallel, len(left))), mp_context=context, initializer=_ignore_sigint) as pool:
        futures: dict[Future[None], Job] = {pool.submit(_run_or_resume, job): job for job in left}
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


def _ignore_sigint() -> None:
    """Ctrl-C is handled by the process that started the runs; it terminates them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_in_process(jobs: Sequence[Job], objects: Objects, tick: Callable[[], None]) -> None:
    """Like `run_missing`, one run after another in this process, for runs that need Python objects.

    Each run trains its own copy of the model.
    """
    for job in jobs:
        _check_existing(job)
    for job in jobs:
        _run_or_resume(job, Objects(objects.benchmark, copy.deepcopy(objects.model)))
        tick()


def _run_or_resume(job: Job, objects: Objects = Objects()) -> None:
    if job.folder.exists():
        execution = {key: value for key, value in job.settings.items() if key in EXECUTION}
        resume(job.folder, benchmark=objects.benchmark, model=objects.model, **execution)
        return
    with new_run(job.settings) as folder:
        resume(folder, benchmark=objects.benchmark, model=objects.model)


def _check_existing(job: Job) -> None:
    """Refuse an existing run directory whose settings differ from those of the job."""
    if not job.folder.exists():
        return
    found = resolve(directory.settings(job.folder)).flat()
    # With data from sites, the sites determine these settings.
    ignored = {"out", *EXECUTION} | ({"clients", "partition"} if found["partition"] == "sites" else set())
    for key, value in resolve(job.settings).flat().items():
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
    return done, len(started["tasks"]) * started["rounds"]


def progress(jobs: Sequence[Job]) -> tuple[int, int | None]:
    """Rounds finished by all runs of a comparison, and their total (None until the first has started)."""
    rounds = [rounds_of(job) for job in jobs]
    each = next((total for _, total in rounds if total is not None), None)
    return sum(done for done, _ in rounds), None if each is None else each * len(jobs)


@dataclass
class TimeEstimate:
    """Progress of runs that take different times: the share of the work done and the seconds left.

    The work of a run is its expected time. The speed is measured from the work done since the start.
    """

    jobs: Sequence[Job]
    seconds: Sequence[float]
    parallel: int
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


def parallel_runs(jobs: Sequence[Job]) -> int:
    """How many of these runs fit on the machine's cores at the same time, with their workers and threads."""

    def cores_of(job: Job) -> int:
        if job.settings.get("engine") == "ray":  # such a run takes all the CPUs that Ray has
            return available_cores()
        threads = int(job.settings.get("threads", 1))
        return threads * number_of_workers(job.settings.get("workers"), threads)

    return max(1, available_cores() // max((cores_of(job) for job in jobs), default=1))
