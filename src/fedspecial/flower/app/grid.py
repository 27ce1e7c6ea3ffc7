"""A Flower Grid in this process: the same apps, no sockets, no other processes.

For tests, benchmarks and a first try of a deployment. Clients run one after another when their reply is pulled, so at
most one of them computes at a time and replies need not be held together. Faults can be injected: lost, late, doubled
and changed replies.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

RUN_ID = 1
SERVER = 1
FIRST_NODE = 100
CLIENT_RAISED = 2  # Flower's code for an exception in a ClientApp


@dataclass(frozen=True)
class Delivery:
    """A reply, and how many pulls pass before it arrives."""

    reply: Message
    after: int = 0


Fault = Callable[[Message, Message], Iterable[Delivery]]  # what was asked, what was answered → what arrives


def lost(asked: Message, reply: Message) -> list[Delivery]:
    return []


def doubled(asked: Message, reply: Message) -> list[Delivery]:
    return [Delivery(reply), Delivery(copy.deepcopy(reply))]


def late(pulls: int) -> Fault:
    return lambda asked, reply: [Delivery(reply, after=pulls)]


class InProcessGrid(Grid):
    """``InProcessGrid(app, [{"partition-id": 0}, {"partition-id": 1}])``: one node per node config.

    names:  what the nodes were registered as, in the same order
    faults: node id → `Fault`; it may be changed between rounds
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Sequence[Mapping[str, Any]],
        *,
        names: Sequence[str] = (),
        run_config: Mapping[str, Any] | None = None,
        first_node: int = FIRST_NODE,
    ) -> None:
        _identify()
        self.app = app
        self.contexts = {
            node: Context(RUN_ID, node, dict(config), RecordDict(), dict(run_config or {}))
            for node, config in enumerate(nodes, first_node)
        }
        self.names = dict(zip(self.contexts, names, strict=False))
        self.faults: dict[int, Fault] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[str, Message] = {}
        self._on_the_way: dict[str, list[Delivery]] = {}

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def get_nodes(self) -> list[Any]:
        nodes = list(super().get_nodes())
        for node in nodes:
            node.name = self.names.get(node.node_id, "")
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            name = f"message-{next(self._numbers)}"
            _name(message, name)
            self._asked[name] = message
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Replies that have arrived, each computed when it is its turn."""
        for name in message_ids:
            if name in self._asked:
                asked = self._asked.pop(name)
                fault = self.faults.get(asked.metadata.dst_node_id)
                reply = self._answer(asked)
                self._on_the_way[name] = list(fault(asked, reply) if fault else [Delivery(reply)])
            waiting = self._on_the_way.pop(name, [])
            if still := [Delivery(d.reply, d.after - 1) for d in waiting if d.after > 0]:
                self._on_the_way[name] = still
            yield from (d.reply for d in waiting if d.after <= 0)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies, also late ones, unless the time given is none at all."""
        names = self.push_messages(messages)
        replies = list(self.pull_messages(names))
        while timeout != 0 and any(name in self._on_the_way for name in names):
            replies += self.pull_messages(names)
        return replies

    def _answer(self, asked: Message) -> Message:
        """As a node does: on a message of its own, an exception becomes an error reply."""
        content = RecordDict({name: _copied(record) for name, record in asked.content.items()})
        about = asked.metadata
        received = Message(content, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id)
        _name(received, about.message_id)
        try:
            reply = self.app(received, self.contexts[about.dst_node_id])
        except Exception as error:
            reply = Message(Error(CLIENT_RAISED, f"{type(error).__name__}: {error}"), reply_to=asked)
        _name(reply, f"reply-to-{about.message_id}")
        return reply

    # Flower's interface asks for these; apps that use `Message` never call them.
    def set_run(self, run: Any) -> None:
        raise NotImplementedError("an in-process grid has one run")

    @property
    def run(self) -> Any:
        raise NotImplementedError("an in-process grid has no stored run")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError("use flwr.app.Message")


def _copied(record: Any) -> Any:
    """A record of its own; the arrays in it are bytes, which nobody can change."""
    return type(record)(dict(record))


def _name(message: Message, name: str) -> None:
    """Flower's own grids set the identifier in this way too; there is no other."""
    message.metadata.__dict__["_message_id"] = name


def _identify() -> None:
    """Since 1.40 a message asks its process who it is; outside a SuperLink nobody has said so."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    for name, value in (("_run_id", RUN_ID), ("_node_id", SERVER), ("_task_id", 0)):
        if getattr(TaskIdentity, name, None) is None:
            setattr(TaskIdentity, name, value)
