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

from fedspecial.data.benchmark import Benchmark
from fedspecial.data.partition import Partition
from fedspecial.data.samples import Domain
from fedspecial.data.schema import TableEncoding


def has_missing(benchmark: Benchmark) -> bool:
    """Whether values of a table are missing. Data that is read batch by batch is checked when it is read."""
    parts = [part.x for domain in benchmark.domains for part in (domain.train, domain.test)]
    arrays = [x for x in parts if isinstance(x, Tensor) and x.is_floating_point()]
    return benchmark.kind == "table" and any(bool(x.isnan().any()) for x in arrays)


def describe_missing(benchmark: Benchmark) -> list[str]:
    """One line per domain with missing values: how many there are in which column."""
    if not has_missing(benchmark):
        return []
    encoding = benchmark.encoding
    names: dict[int, str] = {}
    for column in encoding.columns if isinstance(encoding, TableEncoding) else ():
        names |= {len(names) + number: column.name for number in range(column.inputs)}
    lines = []
    for domain in benchmark.domains:
        counts: dict[str, int] = {}
        arrays = [part.x for part in (domain.train, domain.test) if isinstance(part.x, Tensor)]
        missing = torch.stack([x.isnan().sum(0) for x in arrays]).sum(0) if arrays else torch.zeros(0)
        for index in missing.nonzero().flatten().tolist():
            counts[names.get(index, f"column {index}")] = int(missing[index])  # all inputs of a category count once
        if counts:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            lines.append(
                f"domain '{domain.name}': missing values, filled in by each client from its own rows: {listed}"
            )
    return lines


def impute(benchmark: Benchmark, partitions: Sequence[Partition]) -> Benchmark:
    """The benchmark without NaN, given the partitions of its domains in order. Only tables are changed."""
    if benchmark.kind != "table":
        return benchmark
    filled = [_filled(*pair) for pair in zip(benchmark.domains, partitions, strict=True)]
    encoding = benchmark.encoding
    if isinstance(encoding, TableEncoding) and encoding.fill is None:
        # New rows belong to no domain either, so they get the mean over the domains.
        encoding = replace(encoding, fill=tuple(torch.stack([fill for _, fill in filled]).mean(dim=0).tolist()))
    return replace(benchmark, domains=tuple(domain for domain, _ in filled), encoding=encoding)


def _filled(domain: Domain, partition: Partition) -> tuple[Domain, Tensor]:
    """The domain without NaN, and what its test rows were filled with."""
    x = domain.train.x.clone()
    fills = []
    for client in range(partition.num_clients):
        rows = torch.from_numpy(partition.rows(client))
        if len(rows) == 0:
            continue
        fill = column_means(x[rows])
        x[rows] = torch.where(x[rows].isnan(), fill, x[rows])
        fills.append(fill)
    fill, test = torch.stack(fills).mean(dim=0), domain.test.x
    test = torch.where(test.isnan(), fill, test)
    return replace(domain, train=replace(domain.train, x=x), test=replace(domain.test, x=test)), fill


def column_means(x: Tensor) -> Tensor:
    """The mean of the known values of each column; 0 for a column without any."""
    known = (~x.isnan()).sum(dim=0)
    return x.nan_to_num(0).sum(dim=0) / known.clamp(min=1)
