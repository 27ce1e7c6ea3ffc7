"""A Grid that notes which sites are connected and when they last answered, in sites.json for `flower status`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedspecial.core.files import write_atomic
from fedspecial.flower.app.forwarding_grid import ForwardingGrid

FILE = "sites.json"
_WRITE_SECONDS = 1.0
_LOOK_SECONDS = 5.0


class WatchedGrid(ForwardingGrid):
    """
    admit: whether the node with this registered name and public key may take part; others are treated as absent
    nodes: client → node of the connected sites; set once the engine knows them
    """

    def __init__(
        self, grid: Grid, path: Path, sites: Sequence[str], admit: Callable[[str, bytes], bool] = lambda name, key: True
    ) -> None:
        super().__init__(grid)
        self._path, self._sites, self._admit = path, sites, admit
        self.nodes: Callable[[], Mapping[int, int]] = dict
        self._sent: dict[str, tuple[int, float]] = {}
        self._answered: dict[str, dict[str, Any]] = {}
        self._written, self._connected = float("-inf"), frozenset[str]()
        self._looked, self._registered = float("-inf"), set[int]()

    def get_nodes(self) -> Any:
        found = [node for node in self._grid.get_nodes() if self._admit(node.name, node.public_key)]
        self._registered = {node.node_id for node in found}
        self._write()
        self._looked = time.monotonic()
        return found

    def close(self) -> None:
        """Write what has happened since the file was last written."""
        self._written = float("-inf")
        self._write()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        message_ids = list(self._grid.push_messages(messages))
        now = time.time()
        for message_id, message in zip(message_ids, messages, strict=False):
            if message_id:
                self._sent[message_id] = message.metadata.dst_node_id, now
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Replies that have arrived. A round may take hours, so the file is also written while the server waits."""
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self.get_nodes()
        for reply in self._grid.pull_messages(message_ids):
            node, sent = self._sent.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node is not None and not reply.has_error() and (site := self._site_at(node)):
                now = time.time()
                self._answered[site] = {"last_reply": _text(now), "reply_seconds": round(now - sent, 3)}
            yield reply

    def _site_at(self, node: int) -> str | None:
        return next((self._sites[client] for client, at in self.nodes().items() if at == node), None)

    def _write(self) -> None:
        nodes = dict(self.nodes())
        connected = frozenset(site for client, site in enumerate(self._sites) if nodes.get(client) in self._registered)
        if connected == self._connected and time.monotonic() - self._written < _WRITE_SECONDS:
            return
        self._written, self._connected, now = time.monotonic(), connected, time.time()
        waiting: dict[int, float] = {}
        for asked, sent in self._sent.values():
            waiting[asked] = max(waiting.get(asked, 0.0), round(now - sent, 1))
        rows = {}
        for client, site in enumerate(self._sites):
            node = nodes.get(client)
            state = {"connected": site in connected, "waiting_seconds": waiting.get(node, 0.0) if node else 0.0}
            rows[site] = {**state, **self._answered.get(site, {})}
        write_atomic(self._path, json.dumps({"time": _text(now), "sites": rows}).encode())


def _text(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
