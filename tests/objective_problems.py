"""Small federations whose targets are not classes, and an objective of a user's own that workers can import."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedspecial import Benchmark, Domain, Metric, Objective

SLOPES = torch.tensor([1.0, -2.0, 0.5])


def lines(tasks: int = 2, rows: int = 64) -> Benchmark:
    """Three features, and a linear function of them that is the same in every domain; the features are shifted."""
    domains = []
    for task in range(tasks):
        generator = torch.Generator().manual_seed(task)
        parts = []
        for _ in range(2):
            x = torch.randn(rows, 3, generator=generator) + task
            parts.append((x, x @ SLOPES + 3))
        wards = [f"ward {row % 4}" for row in range(rows)]
        domains.append(Domain.of(f"d{task + 1}", *parts, columns={"ward": wards}))
    return Benchmark("lines", tuple(domains), ("y",), kind="table")


def tags(tasks: int = 2, rows: int = 64) -> Benchmark:
    """Two labels: whether each of two features is positive."""
    domains = []
    for task in range(tasks):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(task))
        part = (x, (x[:, :2] > 0).long())
        domains.append(Domain.of(f"d{task + 1}", part, part))
    return Benchmark("tags", tuple(domains), ("up", "right"), kind="table")


def squares(tasks: int = 2, rows: int = 24) -> Benchmark:
    """Bright squares on a dark, noisy ground; the mask is the square."""
    domains = []
    for task in range(tasks):
        generator = torch.Generator().manual_seed(task)
        masks = torch.zeros(rows, 6, 6, dtype=torch.int64)
        for row, corner in enumerate(torch.randint(0, 4, (rows, 2), generator=generator).tolist()):
            masks[row, corner[0] : corner[0] + 3, corner[1] : corner[1] + 3] = 1
        x = (2.0 * masks - 1 + 0.3 * torch.randn(rows, 6, 6, generator=generator)).unsqueeze(1) * (1 + task)
        domains.append(Domain.of(f"d{task + 1}", (x, masks), (x, masks)))
    return Benchmark("squares", tuple(domains), ("ground", "square"))


def absolute_error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return (model(x).squeeze(1) - y).abs().mean()


def closeness(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    error = (outputs.squeeze(1) - targets).abs()
    return {"closeness": -float(error.mean()), "largest": float(error.max())}


OWN = Objective("absolute", absolute_error, closeness, Metric("closeness", low=None, high=0.0))
