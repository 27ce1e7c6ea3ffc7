"""The data of all clients of a run: which client has which rows of which domain. Determined by the seed alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedspecial.data.benchmark import Benchmark, Domain


class ClientRows(Protocol):
    """What training needs of a partition: client → row numbers."""

    def rows(self, client: int) -> np.ndarray: ...


@dataclass
class Federation:
    """Domains and their partitions. A partition is made when its task begins.

    partition: (task, domain) → the rows of each client
    """

    benchmark: Benchmark
    clients: int
    partition: Callable[[int, Domain], ClientRows]
    _current: dict[int, ClientRows] = field(default_factory=dict)
    _outputs: dict[int, int] = field(default_factory=dict)

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
