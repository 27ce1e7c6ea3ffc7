"""The problems that are timed: made-up data of the right shape, and a run on it that is ready for its first round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedspecial.config import merge_settings, resolve
from fedspecial.data.benchmark import Benchmark, Domain, Samples
from fedspecial.data.federation import Federation
from fedspecial.engine.checkpoint import Position
from fedspecial.engine.loop import Run, run_round
from fedspecial.runs.build import make_federation, prepare

CLASSES = tuple("0123456789")


@dataclass(frozen=True)
class EqualShares:
    """A lazy partition: client m holds `share` rows, made when it is asked for; past the end they start again."""

    share: int
    total: int

    def rows(self, client: int) -> np.ndarray:
        return (np.arange(self.share) + client * self.share) % self.total


def features(rows: int, num_features: int = 784, tasks: int = 1) -> Benchmark:
    """Float features that need no preparation, so that nothing but training is timed."""
    return _benchmark("features", "table", tasks, lambda g: torch.randn(rows, num_features, generator=g))


def images(rows: int, size: int = 32, tasks: int = 1) -> Benchmark:
    """uint8 images, normalised batch by batch."""
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
    """A real run, its folder and event log included, evaluation off.

    share: rows of every client, dealt out lazily; without it the run's own partition is used
    """
    settings = merge_settings({"benchmark": f"object:{benchmark.name}", "eval_every": 0, **settings})
    resolved = resolve(settings)
    federation = make_federation(resolved.config, benchmark)
    if share is not None:
        lazy = EqualShares(share, len(benchmark.domains[0].train))
        federation = Federation(benchmark, resolved.config.clients, lambda task, domain: lazy)
    folder.mkdir(parents=True)
    return prepare(folder, resolved, federation, None, None)


def play(run: Run, task: int, round: int) -> None:
    """What the loop does in one round: the round itself, and a checkpoint where one is due."""
    run_round(run, task, round)
    if run.checkpointer.due():
        run.checkpoint(Position(task, round + 1))
