"""Small federations for tests: domains that a tiny model learns in milliseconds."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, patch

import torch
from torch import Tensor, nn

import fedspecial
from fedspecial import Benchmark, Domain, Result, Samples
from fedspecial.config import given_object, merge_settings, resolve
from fedspecial.core.messages import Broadcast, ClientState
from fedspecial.engine import loop
from fedspecial.engine.run import Run
from fedspecial.objectives.classification import CLASSIFICATION
from fedspecial.runs import execute as execution
from fedspecial.runs.build import prepare
from fedspecial.runs.data import make_federation
from fedspecial.runs.devices import torch_settings
from fedspecial.runs.directory import create

QUICK = {
    "rounds": 3,
    "local_epochs": 2,
    "batch_size": 8,
    "clients": 4,
    "clients_per_round": 3,
    "alpha": 1.0,
    "min_per_client": 4,
    "client_lr": 0.1,
    "checkpoint_seconds": 0,
}


def rotated_blobs(tasks: int = 3, rows: int = 96, classes: int = 3) -> Benchmark:
    """Gaussian classes, rotated differently in every task: same labels, different inputs."""
    domains = []
    for task in range(tasks):
        generator = torch.Generator().manual_seed(task)
        rotation = torch.linalg.qr(torch.randn(6, 6, generator=generator))[0]
        parts = []
        for _ in range(2):
            y = torch.arange(rows) % classes
            x = 2 * torch.eye(6)[y] + 0.4 * torch.randn(rows, 6, generator=generator)
            parts.append((x @ rotation, y))
        domains.append(Domain.of(f"d{task + 1}", *parts))
    return Benchmark("blobs", tuple(domains), tuple("abc"[:classes]), kind="table")


def images(tasks: int = 2, rows: int = 64, size: int = 8) -> Benchmark:
    """uint8 images, bright on the left or on the right; the background is brighter in every task."""
    domains = []
    for task in range(tasks):
        generator = torch.Generator().manual_seed(100 + task)
        parts = []
        for _ in range(2):
            y = torch.arange(rows) % 2
            noise = torch.randint(0, 60, (rows, 3, size, size), generator=generator)
            noise[y == 0, :, :, : size // 2] += 100
            noise[y == 1, :, :, size // 2 :] += 100
            x = (noise + 60 * task).to(torch.uint8)
            parts.append((x, y))
        domains.append(Domain.of(f"w{task + 1}", *parts))
    return Benchmark("images", tuple(domains), ("left", "right"))


def growing() -> Benchmark:
    """Each task adds two new classes."""
    pairs = [(domain.train.x, domain.train.y + 2 * task) for task, domain in enumerate(images(tasks=2).domains)]
    domains = tuple(Domain.of(f"t{number}", pair, pair) for number, pair in enumerate(pairs, start=1))
    return Benchmark("grows", domains, tuple("abcd"), incremental="class")


def texts(tasks: int = 2) -> Benchmark:
    """Token ids: the two classes use different tokens, and every task uses its own tokens."""
    domains = []
    for task in range(tasks):
        generator = torch.Generator().manual_seed(task)
        y = torch.arange(64) % 2
        x = torch.randint(1, 20, (64, 6), generator=generator) + 50 * y[:, None] + 200 * task
        domains.append(Domain.of(f"t{task + 1}", (x, y), (x, y)))
    return Benchmark("texts", tuple(domains), ("good", "bad"), kind="text")


def learn(
    folder: Path, method: Any = "fedavg", benchmark: Benchmark | None = None, *, pictures: bool = False, **settings: Any
) -> Result:
    """A complete run in `folder`, by default without figures, because drawing them takes longer than training."""
    settings = {**QUICK, "model": "mlp", "width": 8, **settings}
    skipped = {} if pictures else dict.fromkeys(("draw_matrix", "draw_curves", "draw_drift"), DEFAULT)
    with patch.multiple(execution, **skipped) if skipped else contextlib.nullcontext():
        return fedspecial.run(benchmark or rotated_blobs(), method=method, out=folder, **settings)


def extend(folder: Path, domains: Any, **given: Any) -> Result:
    """Extend a finished run, without figures."""
    with patch.multiple(execution, **dict.fromkeys(("draw_matrix", "draw_curves", "draw_drift"), DEFAULT)):
        return fedspecial.extend(folder, domains, **given)


def first(benchmark: Benchmark, tasks: int) -> Benchmark:
    """The benchmark with its first domains only."""
    return replace(benchmark, domains=benchmark.domains[:tasks])


def learn_settings(folder: Path, **settings: Any) -> Result:
    """A complete run of a named benchmark, without figures."""
    with patch.multiple(execution, **dict.fromkeys(("draw_matrix", "draw_curves", "draw_drift"), DEFAULT)):
        return fedspecial.run(out=folder, **settings)


def begin(folder: Path, method: str = "fedavg", benchmark: Benchmark | None = None, **settings: Any) -> Run:
    """A run before its first round, for tests that inspect or change its parts."""
    benchmark = benchmark or rotated_blobs()
    module, method_object = settings.pop("module", None), settings.pop("method_object", None)
    settings = {**QUICK, "model": "mlp", "width": 8, "benchmark": given_object("test"), "method": method, **settings}
    settings = merge_settings({**settings, "out": str(folder)})
    resolved = resolve(settings, method_object)
    return prepare(
        create(settings),
        resolved,
        make_federation(resolved.config, benchmark, all_domains=resolved.method.all_domains),
        module,
        None,
    )


def play(run: Run) -> Run:
    """Execute all rounds of a run that `begin` prepared."""
    with contextlib.closing(run.log), torch_settings(run.config):
        loop.learn(run)
    return run


def accuracy(run: Run, client: int, message: Broadcast, samples: Samples) -> Any:
    """The accuracy of one client that predicts with this message and has no state of its own."""
    scoring = CLASSIFICATION.scoring(complete=False)
    return run.engine.runner.scores(client, message, ClientState(), samples, scoring)["accuracy"]  # type: ignore[attr-defined]


class Scalar(nn.Module):
    """One weight, so that a run can be computed by hand."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([start]))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.ones_like(x)


def points(*tasks: list[float]) -> Benchmark:
    """One domain per task; the data of client m is the single number tasks[i][m]."""
    domains = []
    for number, values in enumerate(tasks, start=1):
        x, y = torch.tensor(values).view(-1, 1), torch.zeros(len(values), dtype=torch.int64)
        domains.append(Domain.of(f"t{number}", (x, y), (x, y)))
    return Benchmark("points", tuple(domains), ("only",), kind="table")
