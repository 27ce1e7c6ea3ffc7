"""The interface of an engine: it runs the client half of a method on some clients, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedspecial.core.events import Event
from fedspecial.core.messages import Broadcast, Tensors, Update
from fedspecial.core.vector import FlatModel
from fedspecial.engine.aggregation.mean import not_finite
from fedspecial.methods.base import Query, QueryResult
from fedspecial.objectives.base import Scores

Messages = Callable[[int], Broadcast]
"""Client → the message that this client gets."""


@dataclass(frozen=True)
class Reply:
    """A client's reply in a round: an update, or the reason why there is none, and what the round cost this client.

    bytes_once:   the part of bytes_down that is payloads, which are not sent again
    sent:         the vectors that the client was given to train
    memory:       bytes of everything the client had in memory beside its data
    paper_memory: the same by the paper's counting rule
    """

    client: int
    update: Update | None
    problem: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_once: int = 0
    sent: Tensors = field(default_factory=dict)
    memory: int = 0
    paper_memory: int = 0


@dataclass(frozen=True)
class QueryReply:
    """A client's reply to a query: a result, or the reason why there is none."""

    client: int
    result: QueryResult | None
    problem: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0


def problem_with_result(result: QueryResult, client: int, query: Query) -> str | None:
    """Why the result of a query cannot be used, or None. Every engine checks its results with this function."""
    return not_finite(result.tensors) or query.check(client, result)


class Engine(Protocol):
    """Has clients train, answer queries and predict.

    The tensors of a reply are valid until the next reply is requested: add them up, do not keep them.
    """

    @property
    def workers(self) -> int:
        """How many processes train clients."""
        ...

    def train(
        self, task: int, round: int, clients: Sequence[int], messages: Messages, client_lr: float
    ) -> Iterator[Reply]:
        """One reply for each of these clients."""
        ...

    def query(self, query: Query) -> Iterator[QueryReply]:
        """One reply for each client of the query."""
        ...

    def evaluate(
        self,
        messages: Messages,
        tasks: Sequence[int],
        *,
        cap: int | None = None,
        masked: bool = False,
        complete: bool = False,
    ) -> list[Scores | None]:
        """The metrics on the test samples of each task: of the global model, or the mean over clients where they
        predict differently; None where no client has test samples.

        cap: use at most this many samples of each task · masked: only the classes of the task compete
        complete: all metrics of the objective, and not only the main one
        """
        ...

    def set_model(self, model: FlatModel) -> None:
        """Use this model from now on; the classifier has a new layout."""
        ...

    def events(self) -> list[Event]:
        """What happened to workers or connections since the last call, for the event log."""
        ...

    def close(self) -> None:
        """End what the engine started, such as worker processes."""
        ...

    def checkpoint_state(self) -> tuple[dict[int, str], dict[str, Any]]:
        """What a checkpoint has to contain: client → name of its stored state, and which client has which payload."""
        ...
