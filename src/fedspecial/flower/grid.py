"""A Flower Grid inside one process: it runs the same apps without sockets and without other processes.

Use it for tests, benchmarks and a first try of a deployment. A client runs when its reply is pulled, so at most one
client computes at a time and only one reply is in memory. Faults can be injected: replies that are lost, late,
duplicated or modified.
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
    """A reply, and the number of pulls before it arrives."""

    reply: Message
    after: int = 0


Fault = Callable[[Message, Message], Iterable[Delivery]]  # (request, reply) → what arrives


def lost(request: Message, reply: Message) -> list[Delivery]:
    return []


def duplicated(request: Message, reply: Message) -> list[Delivery]:
    return [Delivery(reply), Delivery(copy.deepcopy(reply))]


def late(pulls: int) -> Fault:
    return lambda request, reply: [Delivery(reply, after=pulls)]


class InProcessGrid(Grid):
    """``InProcessGrid(app, [{"partition-id": 0}, {"partition-id": 1}])`` has one node per node config.

    names:  the names under which the nodes are registered, in the same order; by default, those of their sites
    faults: node id → `Fault`; may be changed between rounds
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
        _set_task_identity()
        self.app = app
        self.contexts = {
            node: Context(RUN_ID, node, dict(config), RecordDict(), dict(run_config or {}))
            for node, config in enumerate(nodes, first_node)
        }
        self.names = dict(zip(self.contexts, names, strict=False))
        self.faults: dict[int, Fault] = {}
        self._numbers = itertools.count(1)
        self._requests: dict[str, Message] = {}
        self._in_transit: dict[str, list[Delivery]] = {}

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def get_nodes(self) -> list[Any]:
        nodes = list(super().get_nodes())
        for node in nodes:
            site = str(self.contexts[node.node_id].node_config.get("site", ""))
            node.name = self.names.get(node.node_id, site)
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        message_ids = []
        for message in messages:
            message_id = f"message-{next(self._numbers)}"
            _set_message_id(message, message_id)
            self._requests[message_id] = message
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Replies that have arrived; each is computed at the moment it is pulled."""
        for message_id in message_ids:
            if message_id in self._requests:
                request = self._requests.pop(message_id)
                fault = self.faults.get(request.metadata.dst_node_id)
                reply = self._run_client(request)
                self._in_transit[message_id] = list(fault(request, reply) if fault else [Delivery(reply)])
            deliveries = self._in_transit.pop(message_id, [])
            if later := [Delivery(d.reply, d.after - 1) for d in deliveries if d.after > 0]:
                self._in_transit[message_id] = later
            yield from (d.reply for d in deliveries if d.after <= 0)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies, including late ones unless `timeout` is 0."""
        message_ids = self.push_messages(messages)
        replies = list(self.pull_messages(message_ids))
        while timeout != 0 and any(message_id in self._in_transit for message_id in message_ids):
            replies += self.pull_messages(message_ids)
        return replies

    def _run_client(self, request: Message) -> Message:
        """Run the app on its own copy of the message, as a node does; an exception becomes an error reply."""
        content = RecordDict({name: _copy_record(record) for name, record in request.content.items()})
        meta = request.metadata
        received = Message(content, meta.dst_node_id, meta.message_type, ttl=meta.ttl, group_id=meta.group_id)
        _set_message_id(received, meta.message_id)
        try:
            reply = self.app(received, self.contexts[meta.dst_node_id])
        except Exception as error:
            reply = Message(Error(CLIENT_RAISED, f"{type(error).__name__}: {error}"), reply_to=request)
        _set_message_id(reply, f"reply-to-{meta.message_id}")
        return reply

    # Required by Flower's abstract class; apps that use `Message` never call them.
    def set_run(self, run: Any) -> None:
        raise NotImplementedError("an in-process grid has one run")

    @property
    def run(self) -> Any:
        raise NotImplementedError("an in-process grid has no stored run")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError("use flwr.app.Message")


def _copy_record(record: Any) -> Any:
    """A shallow copy is enough: the arrays in a record are immutable bytes."""
    return type(record)(dict(record))


def _set_message_id(message: Message, message_id: str) -> None:
    """Flower's own grids set the identifier in this way too; it has no public setter."""
    message.metadata.__dict__["_message_id"] = message_id


def _set_task_identity() -> None:
    """Since Flower 1.40, creating a message needs the identity of the process, which only a SuperLink sets."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    for name, value in (("_run_id", RUN_ID), ("_node_id", SERVER), ("_task_id", 0)):
        if getattr(TaskIdentity, name, None) is None:
            setattr(TaskIdentity, name, value)
