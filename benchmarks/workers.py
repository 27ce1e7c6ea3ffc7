"""Rounds with worker processes, relative to one process. Targets: two workers at least 1.8 times as fast.

Equal clients (`partition=iid`), a CNN and ResNet-18 with 32×32 images, 4 and 8 clients per round. One worker process
against none shows the overhead (at most 1.03). With clients of unequal size, the speed-up cannot exceed the total work
divided by the longest share. That result is therefore shown as a share of this bound, once with the longest clients
first (as the engine does) and once in the order in which they were sampled. Two workers need two free cores.

Two Ray actors are measured in the same way (target: 1.7 times as fast) where Ray is installed. The resident memory of a
worker is shown for federations of different size.
"""

from __future__ import annotations

import importlib.util
import itertools
import multiprocessing
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from memory import resident
from problems import features, images
from timing import Quartiles, arguments, interleave, ratio, set_threads, show, verdict

from fedspecial.config import given_object, merge_settings, resolve
from fedspecial.data.benchmark import Benchmark
from fedspecial.engine.clients.client_states import ClientStates
from fedspecial.engine.clients.payloads import PayloadTracker
from fedspecial.engine.pools.pooled import PooledEngine
from fedspecial.engine.pools.workers import ProcessPool
from fedspecial.engine.round import run_round
from fedspecial.engine.run import Run
from fedspecial.runs.build import prepare, worker_runner
from fedspecial.runs.data import make_federation
from fedspecial.runs.ray_pool import ray_pool

SPEEDUP, RAY_SPEEDUP, OVERHEAD = 1.8, 1.7, 1.03


class UnsortedEngine(PooledEngine):
    """Starts jobs in the order of the clients, to show what starting the longest first gains."""

    def _ordered(self, jobs, work):  # type: ignore[no-untyped-def]
        return super()._ordered(jobs, [0] * len(jobs))


def run_with(
    folder: Path, data: Benchmark, workers: int, engine: type[PooledEngine] = PooledEngine, **own: object
) -> Run:
    """A run that is ready for its first round; `workers=0` trains in this process."""
    settings = merge_settings({"benchmark": given_object("images"), "eval_every": 0, "method": "fedavg", **own})
    resolved = resolve(settings)

    def connect(runner, checkpointer, saved):  # type: ignore[no-untyped-def]
        pool = ProcessPool(workers, partial(worker_runner, resolved.flat(), data, None, None))
        return engine(runner, ClientStates(checkpointer.blobs, {}), PayloadTracker(), pool)

    folder.mkdir(parents=True)
    federation = make_federation(resolved.config, data)
    return prepare(folder, resolved, federation, None, None, connect=connect if workers else None)


def run_on_ray(folder: Path, data: Benchmark, actors: int, **own: object) -> Run:
    """The same run with Ray actors."""
    settings = {"benchmark": given_object("images"), "eval_every": 0, "method": "fedavg", "engine": "ray", **own}
    resolved = resolve(merge_settings({**settings, "workers": actors}))

    def connect(runner, checkpointer, saved):  # type: ignore[no-untyped-def]
        pool = ray_pool(resolved.config, partial(worker_runner, resolved.flat(), data, None, None))
        return PooledEngine(runner, ClientStates(checkpointer.blobs, {}), PayloadTracker(), pool)

    folder.mkdir(parents=True)
    return prepare(folder, resolved, make_federation(resolved.config, data), None, None, connect=connect)


def measure(runs: dict[str, Run], repeats: int) -> dict[str, list[float]]:
    """Wall time of a round of each run, measured alternately."""
    rounds = itertools.count()
    times = interleave({name: partial(_next_round, run, rounds) for name, run in runs.items()}, repeats, warm_up=2)
    for run in runs.values():
        run.engine.close()
        run.log.close()
    return {name: seconds.wall for name, seconds in times.items()}


def _next_round(run: Run, rounds: itertools.count[int]) -> None:
    run_round(run, 1, next(rounds) % 1000)


def equal_clients(folder: Path, model: str, chosen: int, quick: bool, repeats: int) -> None:
    width = {"cnn": 16, "resnet18": 16 if quick else 64}[model]
    data = images(chosen * (64 if quick else 160))
    own = {"model": model, "width": width, "clients": chosen, "clients_per_round": chosen, "partition": "iid"}
    own |= {"local_epochs": 1 if quick else 4, "client_lr": 0.001}
    names = {"in process": 0, "one worker": 1, "two workers": 2}
    runs = {
        name: run_with(folder / f"{model}-{chosen}-{workers}", data, workers, **own) for name, workers in names.items()
    }
    seconds = measure(runs, repeats)
    title = f"{model}, width {width}, {chosen} equal clients"
    show(title, [(name, Quartiles.of(times)) for name, times in seconds.items()], "seconds per round")
    verdict("one worker : in process,", ratio(seconds["one worker"], seconds["in process"]), OVERHEAD)
    verdict("in process : two workers,", ratio(seconds["in process"], seconds["two workers"]), SPEEDUP, at_least=True)


def unequal_clients(folder: Path, quick: bool, repeats: int) -> None:
    data = images(400 if quick else 2000)
    own = {"model": "cnn", "width": 16, "clients": 8, "clients_per_round": 8, "partition": "quantity", "alpha": 0.5}
    own |= {"local_epochs": 1 if quick else 4, "client_lr": 0.001}
    runs = {
        "in process": run_with(folder / "alone", data, 0, **own),
        "two workers, sampled order": run_with(folder / "unsorted", data, 2, UnsortedEngine, **own),
        "two workers, longest first": run_with(folder / "sorted", data, 2, **own),
    }
    rows = np.array([len(runs["in process"].federation.rows(1, client)) for client in range(8)])
    bound = min(2.0, rows.sum() / rows.max())
    seconds = measure(runs, repeats)
    show(
        "cnn, 8 clients of unequal size", [(name, Quartiles.of(s)) for name, s in seconds.items()], "seconds per round"
    )
    for name in list(runs)[1:]:
        speedup = ratio(seconds["in process"], seconds[name])
        print(f"  {name}: {speedup.median:.2f} times as fast, {speedup.median / bound:.0%} of the bound {bound:.2f}")


def ray_actors(folder: Path, model: str, chosen: int, quick: bool, repeats: int) -> None:
    width = {"cnn": 16, "resnet18": 16 if quick else 64}[model]
    data = images(chosen * (64 if quick else 160))
    own = {"model": model, "width": width, "clients": chosen, "clients_per_round": chosen, "partition": "iid"}
    own |= {"local_epochs": 1 if quick else 4, "client_lr": 0.001}
    runs = {
        "in process": run_with(folder / f"ray-0-{model}-{chosen}", data, 0, **own),
        "two actors": run_on_ray(folder / f"ray-2-{model}-{chosen}", data, 2, **own),
    }
    seconds = measure(runs, repeats)
    title = f"{model}, {chosen} equal clients, Ray"
    show(title, [(name, Quartiles.of(times)) for name, times in seconds.items()], "seconds per round")
    verdict("in process : two actors,", ratio(seconds["in process"], seconds["two actors"]), RAY_SPEEDUP, at_least=True)


def memory_of_a_worker(folder: Path, quick: bool) -> None:
    """Resident memory of a worker after three rounds, for federations of different size with the same samples."""
    print("\nresident memory of a worker (MB)")
    data = features(20_000, 64)
    for clients in (10, 100, 1000) if quick else (10, 1000, 20_000):
        own = {"model": "logistic", "clients": clients, "clients_per_round": 8, "partition": "iid", "min_per_client": 1}
        run = run_with(folder / f"memory-{clients}", data, 1, **own)
        for number in range(3):
            run_round(run, 1, number)
        (worker,) = multiprocessing.active_children()
        print(f"  {clients:>7,} clients  {resident('VmRSS', worker.pid):8.1f}")
        run.engine.close()
        run.log.close()


def main() -> None:
    args = arguments(__doc__)
    set_threads(args.threads)
    repeats = args.repeats or (2 if args.quick else 7)
    with tempfile.TemporaryDirectory() as folder:
        for model in ("cnn", "resnet18"):
            for chosen in (4, 8):
                equal_clients(Path(folder), model, chosen, args.quick, repeats)
        unequal_clients(Path(folder), args.quick, repeats)
        memory_of_a_worker(Path(folder), args.quick)
        if importlib.util.find_spec("ray") is not None:
            for model, chosen in (("cnn", 4), ("cnn", 8), ("resnet18", 4)):
                ray_actors(Path(folder), model, chosen, args.quick, repeats)


if __name__ == "__main__":
    main()
