"""A Grid whose `pull_messages` does not wait for replies that sites are still uploading.

The SuperLink announces a reply when its upload begins. Flower's `pull_messages` takes it then and waits for the upload:
as long as a slow line needs for it, and 180 seconds if the site died. It takes one reply after another and cannot be
asked whether one is complete, so a single site would hold up all others. Here each reply is pulled in a thread of its
own, and what has not arrived after a moment is returned by a later call. A reply that cannot be unpacked becomes an
error reply, see `unpacking`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import chain
from threading import Thread

from flwr.app import Message
from flwr.serverapp import Grid

from fedspecial.flower.app.forwarding_grid import ForwardingGrid
from fedspecial.flower.app.unpacking import pull_one

PATIENCE = 0.5
THREADS = 16
KEEP_SECONDS = 60.0


@dataclass
class _Pull:
    """Replies that one thread pulls. `asked`: when somebody last asked for one of its replies."""

    message_ids: frozenset[str]
    future: Future[list[Message]]
    asked: float


class ThreadedGrid(ForwardingGrid):
    """
    patience:  how many seconds `pull_messages` waits for the pulls that it starts; those that take longer go on
    max_bytes: how many bytes the arrays of a reply may have
    """

    def __init__(self, grid: Grid, patience: float = PATIENCE, max_bytes: float = math.inf) -> None:
        super().__init__(grid)
        self._patience, self._max_bytes = patience, max_bytes
        self._pulls: list[_Pull] = []

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that have arrived completely."""
        wanted, now = list(dict.fromkeys(message_ids)), time.monotonic()
        under_way = {message_id for pull in self._pulls for message_id in pull.message_ids}
        new = [message_id for message_id in wanted if message_id not in under_way]
        size = -(-len(new) // THREADS)  # with very many sites, some share a thread
        started = [self._start(new[at : at + size], now) for at in range(0, len(new), size)] if new else []
        wait([pull.future for pull in started], self._patience)
        self._pulls += started
        return [reply for pull in self._take_finished(frozenset(wanted), now) for reply in pull.future.result()]

    def _start(self, message_ids: Sequence[str], now: float) -> _Pull:
        future: Future[list[Message]] = Future()

        def pull() -> None:
            try:
                found = [pull_one(self._grid, message_id, self._max_bytes) for message_id in message_ids]
                future.set_result(list(chain.from_iterable(found)))
            except BaseException as error:
                future.set_exception(error)

        # A daemon, so that a server that has finished does not wait for an upload that nobody needs.
        Thread(target=pull, name="pull", daemon=True).start()
        return _Pull(frozenset(message_ids), future, now)

    def _take_finished(self, wanted: frozenset[str], now: float) -> list[_Pull]:
        """Remove and return the finished pulls of these messages; forget those that nobody asks for any more."""
        finished, rest = [], []
        for pull in self._pulls:
            if pull.message_ids & wanted:
                pull.asked = now
            if pull.future.done() and pull.message_ids & wanted:
                finished.append(pull)
            elif not (pull.future.done() and now - pull.asked > KEEP_SECONDS):
                rest.append(pull)
        self._pulls = rest
        return finished
