"""Partitions of a domain: which client has which rows. Every partition is drawn from a named random stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedspecial.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Partition:
    """The rows of client m are `order[bounds[m]:bounds[m+1]]`. Two arrays suffice for any number of clients."""

    order: np.ndarray
    bounds: np.ndarray

    @property
    def num_clients(self) -> int:
        return len(self.bounds) - 1

    def rows(self, client: int) -> np.ndarray:
        return self.order[self.bounds[client] : self.bounds[client + 1]]

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.bounds)

    @staticmethod
    def by_client(client_of_row: np.ndarray, clients: int) -> Partition:
        """From the client of each row. The rows of a client are in ascending order."""
        bounds = np.zeros(clients + 1, dtype=np.int64)
        np.cumsum(np.bincount(client_of_row, minlength=clients), out=bounds[1:])
        return Partition(np.argsort(client_of_row, kind="stable"), bounds)

    @staticmethod
    def of(parts: Sequence[np.ndarray]) -> Partition:
        bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        order = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        return Partition(order, bounds)


def dirichlet(
    labels: np.ndarray,
    clients: int,
    alpha: float,
    *,
    min_per_client: int,
    rng: np.random.Generator,
    redraws: int = 1000,
) -> Partition:
    """For each class, the shares of the clients ~ Dirichlet(alpha), drawn again until every client has enough rows.

    With a small alpha each client has few classes; with a large alpha all clients have similar data. No position in the
    list of clients is favoured: before and after the redraws, every client has the same expected number of rows.
    """
    _check_total(len(labels), clients, min_per_client)
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(redraws):
        shares = rng.dirichlet(np.full(clients, alpha), size=len(by_class))
        offsets = rng.random(len(by_class))
        counts = [_counts(s, len(rows), u) for s, rows, u in zip(shares, by_class, offsets, strict=True)]
        if np.sum(counts, axis=0).min() >= min_per_client:
            client_of_row = np.empty(len(labels), dtype=np.int64)
            for rows, count in zip(by_class, counts, strict=True):
                client_of_row[rng.permutation(rows)] = np.repeat(np.arange(clients), count)
            return Partition.by_client(client_of_row, clients)
    raise InputError(
        f"min_per_client={min_per_client}: no Dirichlet split of {len(labels)} rows over clients={clients} "
        f"with alpha={alpha:g} gave every client that many in {redraws} draws; "
        "use fewer clients, a larger alpha or a smaller min_per_client"
    )


def _counts(shares: np.ndarray, total: int, offset: float) -> np.ndarray:
    """How many of `total` rows each client gets: its share of them, rounded up or down without bias.

    With cumulative shares C, client m gets ⌊C_m·total + u⌋ − ⌊C_{m−1}·total + u⌋ rows. The mean of ⌊c + u⌋ over an
    offset u that is uniform on [0, 1) is c, so the expected count of every client is its share times `total`. Without
    an offset the last client would get half a row too many on average, and the first half a row too few.
    """
    cuts = np.minimum(np.cumsum(shares)[:-1] * total + offset, total).astype(np.int64)
    return np.diff(cuts, prepend=0, append=total)


def iid(labels: np.ndarray, clients: int, *, min_per_client: int = 0, rng: np.random.Generator) -> Partition:
    """Rows in random order, cut into parts whose sizes differ by at most one."""
    _check_total(len(labels), clients, min_per_client)
    return _cut(rng.permutation(len(labels)), _equal_counts(len(labels), clients))


def shards(
    labels: np.ndarray,
    clients: int,
    shards_per_client: int = 2,
    *,
    min_per_client: int = 0,
    rng: np.random.Generator,
) -> Partition:
    """Rows sorted by class and cut into equal shards; every client gets `shards_per_client` of them at random.

    With few shards a client has few classes. This is the non-IID split of the first FedAvg experiments.
    """
    _check_total(len(labels), clients, min_per_client)
    count = clients * shards_per_client
    if count > len(labels):
        raise InputError(f"shards_per_client={shards_per_client}: {count} shards cannot be cut from {len(labels)} rows")
    order = rng.permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    client_of_shard, client_of_row = np.empty(count, dtype=np.int64), np.empty(len(labels), dtype=np.int64)
    client_of_shard[rng.permutation(count)] = np.repeat(np.arange(clients), shards_per_client)
    client_of_row[by_class] = np.repeat(client_of_shard, _equal_counts(len(labels), count))
    partition = Partition.by_client(client_of_row, clients)
    _check_sizes(partition, min_per_client, f"shards_per_client={shards_per_client}")
    return partition


def quantity(
    labels: np.ndarray, clients: int, alpha: float, *, min_per_client: int, rng: np.random.Generator
) -> Partition:
    """Clients that differ only in size: the rows beyond `min_per_client` are divided by Dirichlet(alpha)."""
    _check_total(len(labels), clients, min_per_client)
    free = len(labels) - clients * min_per_client
    counts = min_per_client + _counts(rng.dirichlet(np.full(clients, alpha)), free, rng.random())
    return _cut(rng.permutation(len(labels)), counts)


def given(sites: Sequence[np.ndarray], rows: int) -> Partition:
    """The clients are the given sites. Their rows must form a partition."""
    partition = Partition.of(list(sites))
    if not np.array_equal(np.sort(partition.order), np.arange(rows)):
        raise InputError(f"sites: their rows do not form a partition of the domain's {rows} training rows")
    return partition


KINDS = ("dirichlet", "iid", "shards", "quantity", "sites")


def make_partition(
    kind: str,
    labels: np.ndarray,
    clients: int,
    *,
    alpha: float = 0.5,
    min_per_client: int = 0,
    shards_per_client: int = 2,
    sites: Sequence[np.ndarray] | None = None,
    rng: np.random.Generator,
) -> Partition:
    """A partition by its name. Given sites are used whatever the name is."""
    if sites is not None:
        return given(sites, len(labels))
    match kind:
        case "dirichlet":
            return dirichlet(labels, clients, alpha, min_per_client=min_per_client, rng=rng)
        case "iid":
            return iid(labels, clients, min_per_client=min_per_client, rng=rng)
        case "shards":
            return shards(labels, clients, shards_per_client, min_per_client=min_per_client, rng=rng)
        case "quantity":
            return quantity(labels, clients, alpha, min_per_client=min_per_client, rng=rng)
        case "sites":
            raise InputError("partition=sites: the data of this benchmark has no sites")
    raise InputError(f"partition='{kind}': not one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")


def _cut(order: np.ndarray, counts: np.ndarray) -> Partition:
    """The first rows in this order go to client 0, the next to client 1, …"""
    client_of_row = np.empty(len(order), dtype=np.int64)
    client_of_row[order] = np.repeat(np.arange(len(counts)), counts)
    return Partition.by_client(client_of_row, len(counts))


def _equal_counts(total: int, parts: int) -> np.ndarray:
    """Sizes that differ by at most one, the larger ones first."""
    return total // parts + (np.arange(parts) < total % parts)


def _check_total(rows: int, clients: int, min_per_client: int) -> None:
    if clients * min_per_client > rows:
        most = f"at most clients={rows // min_per_client}" if rows >= min_per_client else f"more than {rows} rows"
        raise InputError(
            f"min_per_client={min_per_client}: {rows} rows are too few for clients={clients}; it needs {most}"
        )


def _check_sizes(partition: Partition, min_per_client: int, field: str) -> None:
    if partition.sizes.min() < min_per_client:
        raise InputError(f"min_per_client={min_per_client}: {field} leaves a client with {partition.sizes.min()} rows")
