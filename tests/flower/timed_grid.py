"""An in-process Grid with a clock of its own: sites take time, and nothing waits in reality."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import SITES
from flwr.app import Message

from fedspecial.flower.app import async_work, registry, transport
from fedspecial.flower.app.client_app import make_client_app
from fedspecial.flower.grid import InProcessGrid

Delay = Callable[[Message], float]
"""Request → seconds that the site needs for it; infinity if it hangs."""


class FakeTime:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class TimedGrid(InProcessGrid):
    """A site answers one message after another.

    delays: node → how long its answers take; at once if it is not listed
    asked:  every request as (node, message type, time)
    activated: node → when it last connected
    """

    def __init__(self, folder: Path, clock: FakeTime) -> None:
        nodes = [{"site": site, "state": str(folder / f"site-{number}")} for number, site in enumerate(SITES)]
        super().__init__(make_client_app(), nodes)
        self.clock = clock
        self.delays: dict[int, Delay] = {}
        self.asked: list[tuple[int, str, float]] = []
        self._due: dict[str, float] = {}
        self._free: dict[int, float] = {}
        self.activated: dict[int, str] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        listed = list(messages)
        message_ids = super().push_messages(listed)
        for message_id, message in zip(message_ids, listed, strict=True):
            node, now = message.metadata.dst_node_id, self.clock.now
            delay = self.delays.get(node, lambda message: 0.0)(message)
            self._due[message_id] = self._free[node] = max(now, self._free.get(node, 0.0)) + delay
            self.asked.append((node, message.metadata.message_type, now))
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        ready = [m for m in message_ids if self._due.get(m, 0.0) <= self.clock.now and self._reachable(m)]
        return super().pull_messages(ready)

    def _reachable(self, message_id: str) -> bool:
        request = self._requests.get(message_id)
        return request is None or request.metadata.dst_node_id in self.contexts

    def get_nodes(self) -> list[Any]:
        nodes = super().get_nodes()
        for node in nodes:
            node.last_activated_at = self.activated.get(node.node_id, "")
        return nodes

    def restart(self, node: int) -> int:
        """The site loses its work and connects again as another node."""
        new = max(self.contexts) + 1
        self.contexts[new] = self.contexts.pop(node)
        return new

    def restart_at_once(self, node: int) -> int:
        """The site loses its work and connects again as the same node, before anybody has missed it."""
        self.activated[node] = f"at {self.clock.now} s"
        lost = [m for m, request in self._requests.items() if request.metadata.dst_node_id == node]
        self._due |= dict.fromkeys(lost, math.inf)
        self.delays.pop(node, None)
        self._free.pop(node, None)
        return node

    def trainings(self, node: int) -> int:
        return sum(kind == "train" for to, kind, _ in self.asked if to == node)


def training(seconds: float) -> Delay:
    return lambda message: seconds if message.metadata.message_type == "train" else 0.0


HANGS = training(math.inf)


@pytest.fixture
def timed_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TimedGrid:
    clock = FakeTime()
    for module in (async_work, registry, transport):
        monkeypatch.setattr(module, "time", clock)
    return TimedGrid(tmp_path, clock)
