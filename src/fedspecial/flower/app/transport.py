"""Messages out, replies in, within a time; and those replies that nobody waits for any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

Stray = Callable[[int, str], None]


class Transport:
    """stray: told of each answer that comes late or twice: (client, reason)"""

    def __init__(self, grid: Grid, stray: Stray, poll_seconds: float = 0.2) -> None:
        self._grid, self._stray, self._poll_seconds = grid, stray, poll_seconds
        self._overdue: dict[str, int] = {}

    def send(self, messages: Mapping[int, Message], seconds: float) -> Iterator[tuple[int, Message | None]]:
        """Client → message, all at once, since Flower uploads what they have in common once. Replies as they come,
        None for a client whose time is over or whose message could not be sent."""
        names = list(self._grid.push_messages(list(messages.values()))) if messages else []
        sent = {name: client for name, client in zip(names, messages, strict=False) if name}
        yield from ((client, None) for client in messages.keys() - sent.values())
        waiting, deadline = dict(sent), time.monotonic() + seconds
        while waiting:
            for reply in self._grid.pull_messages([*waiting, *self._overdue]):
                name = reply.metadata.reply_to_message_id
                if name in waiting:
                    yield waiting.pop(name), reply
                else:
                    self._not_awaited(name, reply, sent)
            if waiting and time.monotonic() >= deadline:
                break
            if waiting:
                time.sleep(self._poll_seconds)
        self._overdue |= waiting
        yield from ((client, None) for client in waiting.values())

    def _not_awaited(self, name: str, reply: Message, sent: Mapping[str, int]) -> None:
        if name in self._overdue:
            client = self._overdue.pop(name)
            if not reply.has_error():  # an error is the SuperLink's, saying that nothing will come
                self._stray(client, "it answers late")
        elif name in sent:
            self._stray(sent[name], "it answers twice")
