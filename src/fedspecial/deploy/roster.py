"""Which site sits at which node. Node ids are drawn anew at each registration; a site's name lasts."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedspecial import __version__
from fedspecial.deploy import wire
from fedspecial.deploy.arrays import Refused
from fedspecial.deploy.wire import Request

log = logging.getLogger("fedspecial.deploy")


class Roster:
    """Says hello to nodes that are new and remembers their sites.

    A name that two living nodes claim belongs to the one that claimed it first; the other is refused.
    """

    def __init__(self, grid: Grid, plan: str, run: str, sites: Sequence[str], hello_seconds: float) -> None:
        self._grid, self._plan, self._run, self._sites = grid, plan, run, sites
        self._hello_seconds = hello_seconds
        self._clients: dict[int, int] = {}
        self._refused: set[int] = set()

    @property
    def nodes(self) -> dict[int, int]:
        """Client → node of the sites that are here."""
        return {client: node for node, client in self._clients.items()}

    def refresh(self) -> dict[int, int]:
        """Forget nodes that have gone, greet those that are new."""
        living = set(self._grid.get_node_ids())
        self._clients = {node: client for node, client in self._clients.items() if node in living}
        self._refused &= living
        new = sorted(living - self._clients.keys() - self._refused)
        if new:
            self._greet(new)
        return self.nodes

    def wait(self, wanted: int, seconds: float, tell: Callable[[str], None]) -> dict[int, int]:
        """Until so many sites are here, or the time is over."""
        deadline, told = time.monotonic() + seconds, -1
        while len(self.refresh()) < wanted and time.monotonic() < deadline:
            if len(self.nodes) != told:
                told = len(self.nodes)
                tell(f"{told} of {wanted} sites are here")
            time.sleep(0.2)
        return self.nodes

    def _greet(self, nodes: Sequence[int]) -> None:
        hello = [wire.question(wire.HELLO, node, self._plan, Request(self._run, -1), {}, {}) for node in nodes]
        asked = {}
        for message, name in zip(hello, self._grid.push_messages(hello), strict=True):
            asked[name] = message.metadata.dst_node_id
        deadline = time.monotonic() + self._hello_seconds
        waiting = set(asked)
        while waiting and time.monotonic() < deadline:
            for reply in self._grid.pull_messages(sorted(waiting)):
                name = reply.metadata.reply_to_message_id
                if name in waiting:
                    waiting.discard(name)
                    self._meet(asked[name], reply)
            if waiting:
                time.sleep(0.1)
        for name in waiting:
            log.warning("node %s did not say which site it is", asked[name])

    def _meet(self, node: int, reply: Message) -> None:
        try:
            if reply.has_error():
                raise Refused(reply.error.reason)
            said = wire.answered_of(reply, Request(self._run, reply_client(reply)))
            if said.site not in self._sites or self._sites[said.client] != said.site:
                raise Refused(f"'{said.site}' is not client {said.client} of this federation")
            if said.client in self.nodes:
                raise Refused(f"'{said.site}' is here already, at another node")
        except Refused as why:
            self._refused.add(node)
            log.warning("node %s refused: %s", node, why)
            return
        self._clients[node] = said.client
        log.info("site %s is here (node %s)", said.site, node)
        if said.release != __version__:
            log.warning("site %s runs fedspecial %s, the server %s", said.site, said.release, __version__)


def reply_client(reply: Message) -> int:
    """The number under which a site introduces itself; it is checked against the plan afterwards."""
    try:
        return int(json.loads(str(reply.content["config"]["answer"]))["client"])
    except (KeyError, TypeError, ValueError):
        raise Refused("its answer cannot be read") from None
