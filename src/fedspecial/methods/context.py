"""What the two halves of a method work with, and the queries between them at the start and the end of a task."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedspecial.core.batches import Batch, to_device
from fedspecial.core.messages import Broadcast, ClientState, Numbers, Tensors
from fedspecial.core.streams import stream, stream_seed
from fedspecial.errors import InputError
from fedspecial.objectives.base import Objective
from fedspecial.objectives.classification import CLASSIFICATION

if TYPE_CHECKING:
    import numpy as np

    from fedspecial.core.vector import FlatModel


@dataclass(frozen=True)
class ProblemSpec:
    """Shapes and counts of the problem, known before training. How many tasks there will be is not known.

    kind:     "image", "table", "text" or "other"
    input_shape: the shape of one sample
    classes:  all classes, including those that a class-incremental run has not seen yet
    clients:  clients in the federation
    incremental: "domain", or "class" in a class-incremental run
    features: length of the classifier's penultimate feature; None for a module without float32 `features` and `fc`
    mean, std: the mean and standard deviation by which images were normalised
    """

    kind: str
    input_shape: tuple[int, ...]
    classes: int
    clients: int
    incremental: str = "domain"
    features: int | None = None
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)


@dataclass
class ServerContext:
    """What the server half works with. Model and networks are shared: load a vector before each use.

    task:        the number of the task, from 1
    model, networks: the classifier, and the networks of `Method.networks`
    problem, seed: the problem, and the seed of the run
    num_classes: outputs of the classifier in this task
    old_classes: outputs in the previous task, 0 in the first
    """

    task: int
    model: FlatModel
    networks: Mapping[str, FlatModel]
    problem: ProblemSpec
    seed: int
    num_classes: int
    old_classes: int


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
    """A client's own samples of a task: rows of a domain, as stored; `inputs` converts them to the model's input.

    on_device: x and y once more, on the device of the model, where that is not the CPU: batches are selected there
    version:   changes whenever the samples change within a task, as in a stream without sharp borders; 0 if they do not
    """

    x: Tensor
    y: Tensor
    rows: np.ndarray
    inputs: Callable[[Batch], Batch]
    device: torch.device
    on_device: tuple[Tensor, Tensor] | None = None
    version: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows_device(self) -> torch.device:
        """Where `batch` expects row numbers."""
        return (self.on_device or (self.x,))[0].device

    @property
    def labels(self) -> Tensor:
        return self.y[torch.from_numpy(self.rows)]

    def batch(self, rows: Tensor) -> tuple[Batch, Tensor]:
        """These rows of the domain as input of the model, and their labels."""
        x, y = self.on_device or (self.x, self.y)
        x, y = x.index_select(0, rows), y.index_select(0, rows)
        return self.inputs(to_device(x, self.device)), y.to(self.device)

    def batches(self, size: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
        """All of the client's samples once, in their own order."""
        for rows in torch.split(torch.from_numpy(self.rows).to(self.rows_device), size):
            yield self.batch(rows)

    def joined(self, x: Tensor, y: Tensor) -> LocalData:
        """These samples followed by others of the same format, as one data set."""
        own = torch.from_numpy(self.rows)
        mine = self.x.index_select(0, own)
        if not isinstance(mine, Tensor):
            raise InputError("the method stores samples, which dict and tuple inputs do not support")
        both = torch.cat([mine, x]), torch.cat([self.y.index_select(0, own), y])
        moved = None if self.device.type == "cpu" else (both[0].to(self.device), both[1].to(self.device))
        return LocalData(*both, torch.arange(len(both[1])).numpy(), self.inputs, self.device, moved)


@dataclass
class ClientContext:
    """What the client half works with: one client in one round, in one query or in a prediction.

    client:    the number of the client
    model:     the client's model, loaded with the downloaded vector; `model.module` is the network
    broadcast: the message from the server
    state:     what this client keeps between its rounds
    lr:        the learning rate γ_L of this round
    num_classes, old_classes: outputs of the classifier in this task, and in the previous one (0 in the first)
    problem, seed: the problem, and the seed of the run
    data:      the client's own samples of the task
    objective: the loss and the metrics of the run
    networks:  those of `Method.networks`, loaded with the downloaded vectors
    batch:     the number of the current batch, from 1; 0 before the first one
    positions: the positions of the current batch among the client's own samples (0 … len(data) − 1), or among the
               samples that it predicts
    scratch:   anything that the method needs until the client is done, such as an optimizer; in a prediction, all
               clients that predict the same samples share it
    uploads:   tensors that are uploaded with the update and not averaged
    numbers:   numbers that are uploaded with the update
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
    objective: Objective = CLASSIFICATION
    batch: int = 0
    positions: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    scratch: dict[str, Any] = field(default_factory=dict)
    uploads: Tensors = field(default_factory=dict)
    numbers: Numbers = field(default_factory=dict)

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers for the method, independent of all other streams."""
        return stream(self.seed, "method", self.broadcast.task, self.broadcast.round, self.client)

    @cached_property
    def generator(self) -> torch.Generator:
        """The same for torch: ``torch.randn(n, generator=context.generator)``."""
        keys = (self.broadcast.task, self.broadcast.round, self.client)
        return torch.Generator().manual_seed(stream_seed(self.seed, "method-torch", *keys) % 2**63)

    @property
    def weights(self) -> Tensor:
        """The client's weights, without BatchNorm statistics, as a part of the model's vector."""
        return self.model.weights
