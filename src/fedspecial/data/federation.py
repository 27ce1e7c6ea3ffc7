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
from fedspecial.data.stream_schedule import StreamSchedule, rows_in


class ClientRows(Protocol):
    """What training needs of a partition: client → row numbers."""

    def rows(self, client: int) -> np.ndarray: ...


@dataclass(frozen=True)
class ClientSamples:
    """What a client trains on in a round: rows of a domain, or of several, which are then copied.

    domain:  the number of the domain whose training samples `samples` are; None for a copy
    version: changes whenever the samples of a client change within a task; 0 where they do not
    """

    samples: Samples
    rows: np.ndarray
    domain: int | None
    version: int = 0


@dataclass
class Federation:
    """Domains and their partitions. A partition is made when its task begins.

    partition: (number of the domain, domain) → the rows of each client
    separate:  the benchmark with the domains apart, where the training samples of all domains were joined
    absent:    clients that left a real federation; their numbers are not used again
    schedule:  which domain is learned when; None: each once, one after another, by all clients at the same time
    """

    benchmark: Benchmark
    clients: int
    partition: Callable[[int, Domain], ClientRows]
    separate: Benchmark | None = None
    absent: frozenset[int] = frozenset()
    schedule: StreamSchedule | None = None
    _current: dict[int, ClientRows] = field(default_factory=dict)
    _outputs: dict[int, int] = field(default_factory=dict)

    @property
    def present(self) -> Sequence[int]:
        """The clients that take part."""
        everybody = range(self.clients)
        return [client for client in everybody if client not in self.absent] if self.absent else everybody

    @property
    def num_domains(self) -> int:
        return len(self.benchmark.domains)

    @property
    def num_tasks(self) -> int:
        """How many tasks are announced: one for each time that a domain is learned."""
        return self.num_domains if self.schedule is None else self.schedule.num_visits

    def domain(self, task: int) -> Domain:
        return self.benchmark.domains[self.number(task) - 1]

    def number(self, task: int) -> int:
        """The number of the domain of a task, which is another one where domains return."""
        return (task - 1) % self.num_domains + 1

    def rows(self, task: int, client: int) -> np.ndarray:
        number = self.number(task)
        if number not in self._current:
            # Two at most: in a blend, clients have samples of two domains.
            kept = dict(list(self._current.items())[-1:]) if self.schedule is not None else {}
            self._current = {**kept, number: self.partition(number, self.domain(number))}
        return self._current[number].rows(client)

    def client_samples(self, task: int, client: int, time: int | None = None) -> ClientSamples:
        """What a client trains on in a task; `time`: in this round of the stream."""
        if time is None or self.schedule is None:
            return ClientSamples(self.domain(task).train, self.rows(task, client), self.number(task))
        shares = self.schedule.shares(client, time)
        if len(shares) == 1:
            visit = shares[0].visit
            return ClientSamples(self.domain(visit).train, self.rows(visit, client), self.number(visit), -visit)
        parts = []
        for share in shares:
            rows = rows_in(self.rows(share.visit, client), share, self.schedule.seed, client)
            parts.append(self.domain(share.visit).train.take(rows))
        both = Samples(concatenated([part.x for part in parts]), torch.cat([part.y for part in parts]))
        return ClientSamples(both, np.arange(len(both)), None, time + 1)

    def check(self) -> None:
        """Partition every domain once, so that an impossible partition is refused before training begins."""
        for number, domain in enumerate(self.benchmark.domains, start=1):
            self.partition(number, domain)

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
    # All data at any time: only how often the domains are learned is left of the stream.
    schedule = federation.schedule and replace(federation.schedule, width=0)
    return Federation(
        benchmark, federation.clients, lambda task, domain: rows, separate=federation.benchmark, schedule=schedule
    )


@dataclass(frozen=True)
class _AllRows:
    parts: Sequence[ClientRows]
    starts: np.ndarray

    def rows(self, client: int) -> np.ndarray:
        return np.concatenate(
            [start + part.rows(client) for part, start in zip(self.parts, self.starts[:-1], strict=True)]
        )
