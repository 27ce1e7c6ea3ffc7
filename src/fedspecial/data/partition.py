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

    With a small alpha each client has few classes; with a large alpha all clients have similar data.
    """
    by_class = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    if clients * min_per_client <= len(labels):
        for _ in range(redraws):
            shares = rng.dirichlet(np.full(clients, alpha), size=len(by_class))
            cuts = [
                (np.cumsum(share)[:-1] * len(rows)).astype(np.int64)
                for share, rows in zip(shares, by_class, strict=True)
            ]
            counts = [np.diff(cut, prepend=0, append=len(rows)) for cut, rows in zip(cuts, by_class, strict=True)]
            if np.sum(counts, axis=0).min() >= min_per_client:
                return _assign(by_class, cuts, clients, rng)
    raise InputError(
        f"min_per_client={min_per_client}: no Dirichlet split of {len(labels)} rows over clients={clients} "
        f"with alpha={alpha:g} gave every client that many in {redraws} draws; "
        "use fewer clients, a larger alpha or a smaller min_per_client"
    )


def _assign(
    by_class: Sequence[np.ndarray], cuts: Sequence[np.ndarray], clients: int, rng: np.random.Generator
) -> Partition:
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for rows, cut in zip(by_class, cuts, strict=True):
        for part, rows_of_class in zip(parts, np.split(rng.permutation(rows), cut), strict=True):
            part.append(rows_of_class)
    return Partition.of([np.sort(np.concatenate(part)) for part in parts])


def iid(labels: np.ndarray, clients: int, *, min_per_client: int = 0, rng: np.random.Generator) -> Partition:
    """Rows in random order, cut into parts whose sizes differ by at most one."""
    _check_total(len(labels), clients, min_per_client)
    return _sorted(np.array_split(rng.permutation(len(labels)), clients))


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
    pieces = np.array_split(order[np.argsort(labels[order], kind="stable")], count)
    drawn = rng.permutation(count).reshape(clients, shards_per_client)
    partition = _sorted([np.concatenate([pieces[piece] for piece in chosen]) for chosen in drawn])
    _check_sizes(partition, min_per_client, f"shards_per_client={shards_per_client}")
    return partition


def quantity(
    labels: np.ndarray, clients: int, alpha: float, *, min_per_client: int, rng: np.random.Generator
) -> Partition:
    """Clients that differ only in size: the rows beyond `min_per_client` are divided by Dirichlet(alpha)."""
    _check_total(len(labels), clients, min_per_client)
    free = len(labels) - clients * min_per_client
    cuts = (np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * free).astype(np.int64)
    bounds = cuts + min_per_client * np.arange(1, clients)
    return _sorted(np.split(rng.permutation(len(labels)), bounds))


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


def _sorted(parts: Sequence[np.ndarray]) -> Partition:
    return Partition.of([np.sort(part) for part in parts])


def _check_total(rows: int, clients: int, min_per_client: int) -> None:
    if clients * min_per_client > rows:
        raise InputError(f"min_per_client={min_per_client}: {rows} rows are too few for clients={clients}")


def _check_sizes(partition: Partition, min_per_client: int, field: str) -> None:
    if partition.sizes.min() < min_per_client:
        raise InputError(f"min_per_client={min_per_client}: {field} leaves a client with {partition.sizes.min()} rows")
