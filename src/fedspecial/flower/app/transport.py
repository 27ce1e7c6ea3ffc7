"""Sending messages through Flower's Grid and collecting replies until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

LATE = "the reply arrived after the deadline"
DUPLICATE = "the reply is a duplicate"


class Transport:
    """on_unexpected: called with (client, reason) for each reply that is late or a duplicate"""

    def __init__(self, grid: Grid, on_unexpected: Callable[[int, str], None], poll_seconds: float = 0.2) -> None:
        self._grid, self._on_unexpected, self._poll_seconds = grid, on_unexpected, poll_seconds
        self._overdue: dict[str, int] = {}

    def send(self, messages: Mapping[int, Message], seconds: float) -> Iterator[tuple[int, Message | None]]:
        """Send a message to each client and yield replies as they arrive.

        Yields None for a client that missed the deadline or to which the message could not be sent. All messages are
        sent in one call, because Flower then uploads the arrays they share only once.
        """
        message_ids = list(self._grid.push_messages(list(messages.values()))) if messages else []
        sent = {message_id: client for message_id, client in zip(message_ids, messages, strict=False) if message_id}
        yield from ((client, None) for client in messages.keys() - sent.values())
        waiting, deadline = dict(sent), time.monotonic() + seconds
        while waiting:
            for reply in self._grid.pull_messages([*waiting, *self._overdue]):
                message_id = reply.metadata.reply_to_message_id
                if message_id in waiting:
                    yield waiting.pop(message_id), reply
                else:
                    self._report_unexpected(message_id, reply, sent)
            if waiting and time.monotonic() >= deadline:
                break
            if waiting:
                time.sleep(self._poll_seconds)
        self._overdue |= waiting
        yield from ((client, None) for client in waiting.values())

    def _report_unexpected(self, message_id: str, reply: Message, sent: Mapping[str, int]) -> None:
        if message_id in self._overdue:
            client = self._overdue.pop(message_id)
            if not reply.has_error():  # an error comes from the SuperLink and says that there will be no reply
                self._on_unexpected(client, LATE)
        elif message_id in sent:
            self._on_unexpected(sent[message_id], DUPLICATE)
