"""The problems that are timed: random data of the right shape, and a run on it that is ready for its first round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedspecial.config import given_object, merge_settings, resolve
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.federation import Federation
from fedspecial.data.samples import Domain, Samples
from fedspecial.engine import loop
from fedspecial.engine.checkpoint import Position
from fedspecial.engine.round import run_round
from fedspecial.engine.run import Run
from fedspecial.runs.build import prepare
from fedspecial.runs.data import make_federation

CLASSES = tuple("0123456789")


@dataclass(frozen=True)
class EqualShares:
    """A lazy partition: the rows of client m are computed on request, `share` of them, wrapping around at the end."""

    share: int
    total: int

    def rows(self, client: int) -> np.ndarray:
        return (np.arange(self.share) + client * self.share) % self.total


def features(rows: int, num_features: int = 784, tasks: int = 1) -> Benchmark:
    """Float features that need no preprocessing, so that only training is timed."""
    return _benchmark("features", "table", tasks, lambda g: torch.randn(rows, num_features, generator=g))


def images(rows: int, size: int = 32, tasks: int = 1) -> Benchmark:
    """uint8 images, which are normalised batch by batch."""
    shape = (rows, 3, size, size)
    return _benchmark("images", "image", tasks, lambda g: torch.randint(0, 256, shape, dtype=torch.uint8, generator=g))


def _benchmark(name: str, kind: Any, tasks: int, draw: Any) -> Benchmark:
    domains = []
    for task in range(tasks):
        generator = torch.Generator().manual_seed(task)
        x = draw(generator)
        samples = Samples(x, torch.randint(0, len(CLASSES), (len(x),), generator=generator))
        domains.append(Domain(f"domain {task + 1}", samples, samples.take(slice(0, 100))))
    return Benchmark(name, tuple(domains), CLASSES, kind)


def ready_run(folder: Path, benchmark: Benchmark, share: int | None = None, **settings: Any) -> Run:
    """A real run with its run directory and event log, but without evaluation.

    share: number of rows of every client, partitioned lazily; by default the partition of the settings is used
    """
    settings = merge_settings({"benchmark": given_object(benchmark.name), "eval_every": 0, **settings})
    resolved = resolve(settings)
    federation = make_federation(resolved.config, benchmark)
    if share is not None:
        lazy = EqualShares(share, len(benchmark.domains[0].train))
        federation = Federation(benchmark, resolved.config.clients, lambda task, domain: lazy)
    folder.mkdir(parents=True)
    return prepare(folder, resolved, federation, None, None)


def begin_task(run: Run, task: int) -> None:
    """What the training loop does when a task begins, such as setting the anchor."""
    loop._begin_task(run, task)


def round_with_checkpoint(run: Run, task: int, round: int) -> None:
    """What the training loop does in one round: the round itself, and a checkpoint if one is due."""
    run_round(run, task, round)
    if run.checkpointer.due():
        run.checkpoint(Position(task, round + 1))
