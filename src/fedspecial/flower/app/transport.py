"""Sending messages through Flower's Grid and collecting replies.

A question stays outstanding until it is answered. A reply is used as long as its question is being asked: that of the
same round and model, whether it arrives before or after the deadline of the attempt in which it was sent. Replies to
other questions are late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedspecial.flower.app.registry import SiteRegistry
from fedspecial.flower.app.site_reply import SentRequest

LATE = "the reply arrived after the deadline"
DUPLICATE = "the reply is a duplicate"
_REFRESH_SECONDS = 1.0


@dataclass(frozen=True)
class Question:
    """A message to a site that has not been answered.

    key:     what is asked: equal for requests of the same round and model
    session: which connection of the site it was sent to; after a restart the site will not answer it
    sent:    when it was sent
    posted:  asked without waiting; its reply is kept until `arrived` is called
    """

    client: int
    key: Hashable
    session: int
    sent: float
    request: SentRequest
    posted: bool = False


@dataclass(frozen=True)
class Closing:
    """When an exchange ends before its deadline: `grace` seconds after `enough` has become true."""

    enough: Callable[[], bool] = lambda: False
    grace: float = 0.0


class Transport:
    """on_unexpected: called with (client, reason) for each reply that is late or a duplicate"""

    def __init__(
        self,
        grid: Grid,
        registry: SiteRegistry,
        on_unexpected: Callable[[int, str], None],
        poll_seconds: float = 0.2,
    ) -> None:
        self._grid, self._registry, self._on_unexpected = grid, registry, on_unexpected
        self._poll_seconds = poll_seconds
        self._outstanding: dict[str, Question] = {}
        self._answered: dict[str, int] = {}
        self._refreshed = -_REFRESH_SECONDS
        self._kept: list[tuple[Message, Question]] = []

    def push(self, messages: Mapping[int, tuple[Message, Hashable, SentRequest]], *, posted: bool = False) -> None:
        """Send a message to each client. All are sent in one call, because Flower then uploads the arrays they share
        only once. A message that could not be sent will not be answered."""
        message_ids = self._grid.push_messages([message for message, _, _ in messages.values()]) if messages else []
        now = time.monotonic()
        for message_id, (client, (_, key, request)) in zip(message_ids, messages.items(), strict=False):
            if message_id:
                session = self._registry.sessions.get(client, 0)
                self._outstanding[message_id] = Question(client, key, session, now, request, posted)

    def under_way(self, client: int, seconds: float) -> list[Question]:
        """The questions of the last `seconds` that the client may still be working on."""
        since, session = time.monotonic() - seconds, self._registry.sessions.get(client, 0)
        return [q for q in self._outstanding.values() if (q.client, q.session) == (client, session) and q.sent > since]

    def asked(self, client: int) -> bool:
        """Whether the client has a question that it was asked in its present session."""
        session = self._registry.sessions.get(client, 0)
        return any((q.client, q.session) == (client, session) for q in self._outstanding.values())

    def collect(
        self, keys: Mapping[int, Hashable], seconds: float, closing: Closing = Closing()
    ) -> Iterator[tuple[int, Message | None, SentRequest | None]]:
        """The replies of these clients to what is asked of them, as they arrive; None for a client that missed the
        deadline, to which the message could not be sent, or that was restarted since."""
        missing, deadline, closes = dict(keys), time.monotonic() + seconds, False
        self._answered.clear()
        while self._may_answer(missing):
            for client, reply, request in self._pull(missing):
                del missing[client]
                yield client, reply, request
            if not closes and closing.enough():
                closes, deadline = True, min(deadline, time.monotonic() + closing.grace)
            if not missing or time.monotonic() >= deadline:
                break
            self.refresh()
            time.sleep(self._poll_seconds)
        yield from ((client, None, None) for client in missing)

    def refresh(self) -> None:
        """Identify sites that return, so that they can take part in the next exchange; at most once a second."""
        if time.monotonic() - self._refreshed >= _REFRESH_SECONDS:
            self._registry.refresh()
            self._refreshed = time.monotonic()

    def arrived(self) -> list[tuple[Message, SentRequest]]:
        """The replies to posted questions that have arrived since the last call."""
        for _ in self._pull({}):
            pass
        kept, self._kept = self._kept, []
        return [(message, question.request) for message, question in kept]

    def withdraw(self, clients: Collection[int]) -> None:
        """Forget the posted questions of these clients."""
        dropped = [key for key, question in self._outstanding.items() if question.posted and question.client in clients]
        for message_id in dropped:
            del self._outstanding[message_id]
        self._kept = [(message, question) for message, question in self._kept if question.client not in clients]

    def _may_answer(self, missing: Mapping[int, Hashable]) -> bool:
        """Whether one of these clients was asked and has not been restarted since."""
        sessions = self._registry.sessions
        asked = {(q.client, q.key) for q in self._outstanding.values() if q.session == sessions.get(q.client, 0)}
        return any(item in asked for item in missing.items())

    def _pull(self, missing: Mapping[int, Hashable]) -> Iterator[tuple[int, Message, SentRequest]]:
        """The first reply of each of these clients to what is asked of it; all others are reported."""
        expected, used = dict(missing), set[tuple[int, Hashable]]()
        for reply in self._grid.pull_messages(list(self._outstanding)):
            message_id = reply.metadata.reply_to_message_id
            question = self._outstanding.pop(message_id, None)
            if question is None:
                if message_id in self._answered:
                    self._on_unexpected(self._answered[message_id], DUPLICATE)
                continue
            client, what = question.client, (question.client, question.key)
            self._answered[message_id] = client
            if question.posted:
                self._kept.append((reply, question))
                continue
            asked_twice = any((other.client, other.key) == what for other in self._outstanding.values())
            if reply.has_error() and (asked_twice or what not in expected.items()):
                continue  # it comes from the SuperLink and says that there will be no reply to this message
            if what in expected.items() and what not in used:
                used.add(what)
                yield client, reply, question.request
            else:
                self._on_unexpected(client, DUPLICATE if what in used else LATE)
