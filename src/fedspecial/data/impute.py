"""Missing values of tables, filled by each client from its own data.

A hospital must not learn the mean of another hospital, nor its own mean of patients yet to come. Therefore the
training rows of a client are filled with the column means of that client's own training rows of that domain, and
with 0, the centre of a standardised feature, if the client has no value at all. Test rows belong to no client; they
are filled with the mean of the clients' fill values, which is all that a server could know. Indicator columns, made
by the reader, still show which values were missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedspecial.data.benchmark import Benchmark, Domain, Samples
from fedspecial.data.partition import Partition


def impute(benchmark: Benchmark, partitions: Sequence[Partition]) -> Benchmark:
    """The benchmark without NaN, given the partitions of its domains in order. Only tables are changed."""
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
    """The mean of the known values of each column; 0 for a column without any."""
    known = (~x.isnan()).sum(dim=0)
    return x.nan_to_num(0).sum(dim=0) / known.clamp(min=1)
