"""The data of all clients of a run: which client has which rows of which domain. Determined by the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch

from fedspecial.data.benchmark import Benchmark
from fedspecial.data.read_on_demand import concatenated
from fedspecial.data.samples import Domain, Samples


class ClientRows(Protocol):
    """What training needs of a partition: client → row numbers."""

    def rows(self, client: int) -> np.ndarray: ...


@dataclass
class Federation:
    """Domains and their partitions. A partition is made when its task begins.

    partition: (task, domain) → the rows of each client
    separate:  the benchmark with the domains apart, where the training samples of all domains were joined
    absent:    clients that left a real federation; their numbers are not used again
    """

    benchmark: Benchmark
    clients: int
    partition: Callable[[int, Domain], ClientRows]
    separate: Benchmark | None = None
    absent: frozenset[int] = frozenset()
    _current: dict[int, ClientRows] = field(default_factory=dict)
    _outputs: dict[int, int] = field(default_factory=dict)

    @property
    def present(self) -> list[int]:
        """The clients that take part."""
        return [client for client in range(self.clients) if client not in self.absent]

    @property
    def num_tasks(self) -> int:
        return len(self.benchmark.domains)

    def domain(self, task: int) -> Domain:
        return self.benchmark.domains[task - 1]

    def rows(self, task: int, client: int) -> np.ndarray:
        if task not in self._current:
            self._current = {task: self.partition(task, self.domain(task))}
        return self._current[task].rows(client)

    def check(self) -> None:
        """Partition every task once, so that an impossible partition is refused before training begins."""
        for task in range(1, self.num_tasks + 1):
            self.partition(task, self.domain(task))

    def num_classes(self, task: int) -> int:
        """The number of outputs that the model needs in this task: all classes, or those seen so far."""
        if self.benchmark.incremental == "domain":
            return len(self.benchmark.classes)
        if task not in self._outputs:
            self._outputs[task] = 1 + max(int(domain.train.y.max()) for domain in self.benchmark.domains[:task])
        return self._outputs[task]


def with_all_domains(federation: Federation) -> Federation:
    """The same clients, with their rows of all domains in every task; each domain keeps its own test samples."""
    domains = federation.benchmark.domains
    train = Samples(concatenated([d.train.x for d in domains]), torch.cat([d.train.y for d in domains]))
    starts = np.cumsum([0, *(len(domain.train) for domain in domains)])
    parts = [federation.partition(task, domain) for task, domain in enumerate(domains, start=1)]
    joined = tuple(replace(domain, train=train, sites=None) for domain in domains)
    rows = _AllRows(parts, starts)
    benchmark = replace(federation.benchmark, domains=joined)
    return Federation(benchmark, federation.clients, lambda task, domain: rows, separate=federation.benchmark)


@dataclass(frozen=True)
class _AllRows:
    parts: Sequence[ClientRows]
    starts: np.ndarray

    def rows(self, client: int) -> np.ndarray:
        return np.concatenate(
            [start + part.rows(client) for part, start in zip(self.parts, self.starts[:-1], strict=True)]
        )
