"""What the two halves of a method work with, and the queries between them at the start and the end of a task."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedspecial.core.messages import Broadcast, ClientState, Numbers, Tensors
from fedspecial.core.streams import stream, stream_seed

if TYPE_CHECKING:
    import numpy as np

    from fedspecial.core.vector import FlatModel


@dataclass(frozen=True)
class ProblemSpec:
    """The shape of the problem, known before anything is learned.

    classes:  all classes, also those that a class-incremental run has not met yet
    features: length of the classifier's penultimate feature; None for a module without `features` and `fc`
    mean, std: what normalised images were shifted and scaled by
    """

    kind: str
    input_shape: tuple[int, ...]
    classes: int
    tasks: int
    clients: int
    incremental: str = "domain"
    features: int | None = None
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)


@dataclass
class ServerContext:
    """Where the server half works on its own. The networks are for scratch: load a vector before each use.

    num_classes: outputs of the classifier in this task · old_classes: in the previous one, 0 in the first
    """

    task: int
    model: FlatModel
    networks: Mapping[str, FlatModel]
    problem: ProblemSpec
    seed: int
    num_classes: int
    old_classes: int

    @property
    def last(self) -> bool:
        """Whether no task follows."""
        return self.task == self.problem.tasks


@dataclass(frozen=True)
class Query:
    """A question of the server to clients, answered by `Method.answer_query`.

    name:    which query it is
    message: client → what it gets to answer the query
    clients: the clients to query; all of them if None
    check:   (client, result) → why the result cannot be used, or None; such a result is refused
    """

    name: str
    message: Callable[[int], Broadcast]
    clients: Sequence[int] | None = None
    check: Callable[[int, QueryResult], str | None] = lambda client, result: None


@dataclass
class QueryResult:
    """A client's answer to a query: named tensors and numbers, uploaded as they are."""

    tensors: Tensors = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)


Exchange = Generator[Query, dict[int, QueryResult], None]
"""A hook that queries clients: it yields a `Query` and receives the results by client."""


@dataclass
class LocalData:
    """A client's own samples of a task: rows of a domain, as stored; `inputs` makes of them what the model takes.

    on_device: x and y once more, on the device of the model, where that is not the CPU: batches are selected there
    """

    x: Tensor
    y: Tensor
    rows: np.ndarray
    inputs: Callable[[Tensor], Tensor]
    device: torch.device
    on_device: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows_device(self) -> torch.device:
        """Where `batch` expects row numbers."""
        return (self.on_device or (self.x,))[0].device

    @property
    def labels(self) -> Tensor:
        return self.y[torch.from_numpy(self.rows)]

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """These rows of the domain as the model takes them, and their labels."""
        x, y = self.on_device or (self.x, self.y)
        x, y = x.index_select(0, rows), y.index_select(0, rows)
        return self.inputs(x.to(self.device)), y.to(self.device)

    def batches(self, size: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
        """All of the client's samples once, in their own order."""
        for rows in torch.split(torch.from_numpy(self.rows).to(self.rows_device), size):
            yield self.batch(rows)

    def joined(self, x: Tensor, y: Tensor) -> LocalData:
        """These samples and others, stored alike, as one set; the client's own come first."""
        own = torch.from_numpy(self.rows)
        both = torch.cat([self.x.index_select(0, own), x]), torch.cat([self.y.index_select(0, own), y])
        moved = None if self.device.type == "cpu" else (both[0].to(self.device), both[1].to(self.device))
        return LocalData(*both, torch.arange(len(both[1])).numpy(), self.inputs, self.device, moved)


@dataclass
class ClientContext:
    """One client's turn, as the method's client half sees it.

    networks:  those of `Method.networks`, loaded with what was downloaded
    batch:     the number of the current batch, from 1; 0 before the first one
    positions: where the samples of the current batch stand among the client's own (0 … len(data) − 1), or among the
               samples that it predicts
    scratch:   whatever the method needs until the turn is over, such as an optimiser; when clients predict, it is one
               for all that see the same samples
    uploads:   tensors that go up with the update as they are, without being averaged
    numbers:   numbers that go up with the update
    """

    client: int
    model: FlatModel
    broadcast: Broadcast
    state: ClientState
    seed: int
    lr: float
    num_classes: int
    old_classes: int
    problem: ProblemSpec
    data: LocalData
    networks: Mapping[str, FlatModel] = field(default_factory=dict)
    batch: int = 0
    positions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    scratch: dict[str, Any] = field(default_factory=dict)
    uploads: Tensors = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)

    @cached_property
    def rng(self) -> np.random.Generator:
        """The method's own randomness in this turn; drawing from it disturbs nobody else's."""
        return stream(self.seed, "method", self.broadcast.task, self.broadcast.round, self.client)

    @cached_property
    def generator(self) -> torch.Generator:
        """The same for torch: ``torch.randn(n, generator=local.generator)``."""
        keys = (self.broadcast.task, self.broadcast.round, self.client)
        return torch.Generator().manual_seed(stream_seed(self.seed, "method-torch", *keys) % 2**63)

    @property
    def weights(self) -> Tensor:
        return self.model.weights
