"""A Grid that passes everything on to another one; its subclasses change some of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid


class ForwardingGrid(Grid):
    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_nodes(self) -> Any:
        return self._grid.get_nodes()

    def get_node_ids(self) -> Any:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        return self._grid.send_and_receive(messages, timeout=timeout)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self._grid.create_message(*args, **kwargs)
