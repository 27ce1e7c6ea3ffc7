"""Who holds which rows of a domain: partitions of row numbers, made from a named random stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedspecial.errors import InputError


@dataclass(frozen=True)
class Partition:
    """Rows of client m are `order[bounds[m]:bounds[m+1]]`: two arrays, however many clients there are."""

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
    """For each class, client shares ~ Dirichlet(alpha); drawn again until every client has enough rows.

    Small alpha gives clients that hold few classes, large alpha gives equal ones.
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
                return _deal(by_class, cuts, clients, rng)
    raise InputError(
        f"min_per_client={min_per_client}: no Dirichlet split of {len(labels)} rows over clients={clients} with "
        f"alpha={alpha:g} gave every client that many in {redraws} draws; "
        "use fewer clients, a larger alpha or a smaller min_per_client"
    )


def _deal(
    by_class: Sequence[np.ndarray], cuts: Sequence[np.ndarray], clients: int, rng: np.random.Generator
) -> Partition:
    hands: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for rows, cut in zip(by_class, cuts, strict=True):
        for hand, part in zip(hands, np.split(rng.permutation(rows), cut), strict=True):
            hand.append(part)
    return Partition.of([np.sort(np.concatenate(hand)) for hand in hands])
