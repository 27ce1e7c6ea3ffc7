"""Where whole runs are executed: in processes on this machine, or spread over a Ray cluster."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from fedspecial.config import Config, resolve
from fedspecial.errors import InputError
from fedspecial.runs.cores import available_cores, number_of_workers

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

    from fedspecial.engine.pools.ray_cluster import RayCluster
    from fedspecial.runs.jobs import Job

    Execute = Callable[[Job], None]

_NODE_LOST_RETRIES = 3
_NODE_CHECK_SECONDS = 60.0


class JobPool(Protocol):
    """size: how many runs are executed at the same time"""

    size: int

    def submit(self, job: Job) -> Future[None]: ...

    def stop(self) -> None:
        """End the runs that are being executed. They can be resumed."""


@contextmanager
def open_pool(
    jobs: Sequence[Job], parallel: int | None, execute: Execute, gpus: Sequence[str] = ()
) -> Iterator[JobPool]:
    """The pool that the jobs' settings ask for; `parallel` runs at a time, or as many as there is room for.

    gpus: each run sees one of these GPUs; by default one run at a time on each
    """
    if jobs and jobs[0].settings.get("engine") == "ray":
        yield from _ray_pool(jobs, parallel, execute)
    else:
        yield from _local_pool(jobs, parallel, execute, gpus)


@dataclass
class _LocalPool:
    """One process of this machine for each run.

    others:     child processes that were there before the pool; they belong to the caller's program
    needs_main: a run needs a class or function of the program that was started, such as a method in a script
    """

    size: int
    executor: ProcessPoolExecutor
    execute: Execute
    others: Collection[multiprocessing.process.BaseProcess]
    needs_main: bool

    def submit(self, job: Job) -> Future[None]:
        with nullcontext() if self.needs_main else _main_not_imported():
            return self.executor.submit(self.execute, sharing_cores(job, self.size))  # may start a process

    def stop(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process not in self.others:
                process.terminate()


def _local_pool(
    jobs: Sequence[Job], parallel: int | None, execute: Execute, gpus: Sequence[str] = ()
) -> Iterator[JobPool]:
    size = max(1, min(parallel or len(gpus), len(jobs))) if gpus else local_runs(jobs, parallel)
    context, others = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    of_process = context.SimpleQueue()
    for number in range(size):
        of_process.put(gpus[number % len(gpus)] if gpus else None)
    with ProcessPoolExecutor(size, context, _prepare_process, (of_process,)) as executor:
        needs_main = any(str(value).startswith("__main__:") for job in jobs for value in job.settings.values())
        yield _LocalPool(size, executor, execute, others, needs_main)


@contextmanager
def _main_not_imported() -> Iterator[None]:
    """Processes that are started here do not import the main program.

    With "spawn" they would, so a script that calls `compare` outside ``if __name__ == "__main__":`` would be executed
    again in each of them, with all runs before that call.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def sharing_cores(job: Job, runs: int) -> Job:
    """`workers=auto` of a run that is executed together with others: its part of the cores, not all of them."""
    if job.settings.get("workers") != "auto":
        return job
    threads = int(job.settings.get("threads", 1))
    return replace(job, settings={**job.settings, "workers": max(1, available_cores() // (runs * threads))})


def local_runs(jobs: Sequence[Job], parallel: int | None) -> int:
    """How many of these runs are executed at the same time: `parallel`, or as many as fit on the machine's cores with
    their workers and threads."""

    def cores_of(job: Job) -> int:
        threads = int(job.settings.get("threads", 1))
        return threads * number_of_workers(job.settings.get("workers"), threads)

    fitting = available_cores() // max((cores_of(job) for job in jobs), default=1)
    return max(1, min(parallel or fitting, len(jobs)))


def _prepare_process(gpus: SimpleQueue[str | None]) -> None:
    """A process of the pool sees one GPU, which is ``device=cuda`` for all its runs, so that a run can be resumed on
    another one."""
    gpu = gpus.get()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    _end_with_parent()


def _end_with_parent() -> None:
    """Ctrl-C is handled by the process that started the runs, which terminates them. If it is killed, they end too: a
    run that went on unseen would compete with the same run when the command is repeated."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@dataclass
class _RayPool:
    """One Ray task for each run. Ray starts the task of a lost node again elsewhere, and the run is resumed there."""

    size: int
    cluster: RayCluster
    task: Any
    _running: list[Any] = field(default_factory=list)

    def submit(self, job: Job) -> Future[None]:
        # Processes on other nodes have another working directory, so the path of the run directory is absolute.
        folder = job.folder.absolute()
        job = replace(job, folder=folder, settings={**job.settings, "out": str(folder)})
        reference = self.task.remote(job, _DriverEnvironment.here())
        self._running.append(reference)
        future: Future[None] = reference.future()
        return future

    def stop(self) -> None:
        for reference in self._running:
            self.cluster.ray.cancel(reference, force=True)


@dataclass(frozen=True)
class _DriverEnvironment:
    """What a process on another node needs to find the driver's files: its folder and the variables of fedspecial."""

    folder: str
    variables: dict[str, str]

    @staticmethod
    def here() -> _DriverEnvironment:
        own = {name: value for name, value in os.environ.items() if name.startswith("FEDSPECIAL_")}
        return _DriverEnvironment(os.getcwd(), own)

    def apply(self) -> None:
        if not Path(self.folder).is_dir():
            raise InputError(f"engine=ray: a node of the cluster does not have the folder {self.folder}; {_SHARED}")
        os.chdir(self.folder)
        os.environ.update(self.variables)


_SHARED = "whole runs need a file system that all nodes share"


def _ray_pool(jobs: Sequence[Job], parallel: int | None, execute: Execute) -> Iterator[JobPool]:
    from fedspecial.engine.pools import ray_cluster

    config: Config = resolve(jobs[0].settings).config
    cluster = ray_cluster.connect(config.ray_address, cpus=max(available_cores(), parallel or 1))
    try:
        # A run with a number of workers has actors of its own, which reserve the CPUs; its task then needs none.
        actors = config.workers if isinstance(config.workers, int) else None
        room = cluster.room_for(config.cpus_per_client, config.gpus_per_client) // (actors or 1)
        if room == 0:
            raise InputError(
                f"workers={actors or 1}, cpus_per_client={config.cpus_per_client:g}, "
                f"gpus_per_client={config.gpus_per_client:g}: the Ray cluster has no room for one run "
                f"(it has {cluster.describe_resources()})"
            )
        _check_shared_folder(cluster, jobs[0].folder.absolute().parent)
        cpus, gpus = (0.0, 0.0) if actors else (config.cpus_per_client, config.gpus_per_client)
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": _NODE_LOST_RETRIES, "retry_exceptions": False}

        def task(job: Job, driver: _DriverEnvironment) -> None:
            driver.apply()
            if actors is None:
                job = replace(job, settings={**job.settings, "engine": "local", "workers": 1})
            execute(job)

        yield _RayPool(min(parallel or room, len(jobs)), cluster, cluster.ray.remote(**options)(task))
    finally:
        cluster.close()


def _check_shared_folder(cluster: RayCluster, folder: Path) -> None:
    """Refuse a cluster whose nodes do not see the folder of the runs, before the first run starts."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".shared-{secrets.token_hex(8)}"
    probe.touch()

    def sees_it() -> bool:
        return probe.exists()

    try:
        for address, found in cluster.call_on_nodes(sees_it, _NODE_CHECK_SECONDS):
            if not found:
                raise InputError(f"out={folder}: the Ray node {address} does not see this folder; {_SHARED}")
    finally:
        probe.unlink()
