"""Missing values of tables, filled by each client from what it holds itself.

A hospital must not learn another hospital's mean, nor its own from patients yet to come. So a client's
training rows are filled with the means of that client's own training rows of that domain, and a value it
has never seen with 0, which is the centre of a standardised feature. Test rows belong to nobody; they are
filled with the mean over clients of their fill values, which is all a server could know. Indicator columns,
made by the reader, still say what was missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedspecial.data.benchmark import Benchmark, Domain, Samples
from fedspecial.data.partition import Partition


def impute(benchmark: Benchmark, partitions: Sequence[Partition]) -> Benchmark:
    """The benchmark without NaN; `partitions` are its domains', in order. Other data passes unchanged."""
    if benchmark.kind != "table":
        return benchmark
    filled = (_filled(*pair) for pair in zip(benchmark.domains, partitions, strict=True))
    return replace(benchmark, domains=tuple(filled))


def _filled(domain: Domain, partition: Partition) -> Domain:
    x = domain.train.x.clone()
    fills = []
    for client in range(partition.num_clients):
        rows = torch.from_numpy(partition.rows(client))
        if len(rows) == 0:
            continue
        fill = column_means(x[rows])
        x[rows] = torch.where(x[rows].isnan(), fill, x[rows])
        fills.append(fill)
    test = domain.test.x
    if fills:
        test = torch.where(test.isnan(), torch.stack(fills).mean(dim=0), test)
    return replace(domain, train=Samples(x, domain.train.y), test=Samples(test, domain.test.y))


def column_means(x: Tensor) -> Tensor:
    """Mean of what is known in each column, 0 where nothing is."""
    known = (~x.isnan()).sum(dim=0)
    return x.nan_to_num(0).sum(dim=0) / known.clamp(min=1)
