"""Which site sits at which node. Node ids are drawn anew at each registration; a site's name lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedspecial import __version__
from fedspecial.flower.app import wire
from fedspecial.flower.app.arrays import Refused
from fedspecial.flower.app.wire import Request

log = logging.getLogger("fedspecial.flower")
REFUSED_SECONDS = 60.0  # then a node is greeted again: somebody may have put its data right


class SiteRegistry:
    """Says hello to nodes that are new and remembers their sites.

    A name that two living nodes claim belongs to the one that claimed it first, until that one has gone. A node that
    was registered under a name is believed no other.
    """

    def __init__(self, grid: Grid, plan: str, run: str, sites: Sequence[str]) -> None:
        self._grid, self._plan, self._run, self._sites = grid, plan, run, sites
        self._greeted: dict[str, int] = {}
        self._claims: dict[int, int] = {}
        self._refused: dict[int, float] = {}

    @property
    def nodes(self) -> dict[int, int]:
        """Client → node of the sites that are here."""
        return {client: node for node, client in reversed(self._claims.items())}

    def refresh(self) -> dict[int, int]:
        """Forget nodes that have gone, hear those that were greeted, greet those that are new; nobody is waited for."""
        registered = {node.node_id: node.name for node in self._grid.get_nodes()}
        self._claims = {node: client for node, client in self._claims.items() if node in registered}
        over = time.monotonic() - REFUSED_SECONDS
        self._refused = {node: when for node, when in self._refused.items() if node in registered and when > over}
        self._greeted = {name: node for name, node in self._greeted.items() if node in registered}
        known = {*self._claims, *self._refused, *self._greeted.values()}
        self._greet(sorted(registered.keys() - known))
        for reply in self._grid.pull_messages(list(self._greeted)) if self._greeted else ():
            node = self._greeted.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                self._meet(node, registered[node], reply)
        return self.nodes

    def wait(
        self, clients: Collection[int], wanted: int, seconds: float, tell: Callable[[str], None] = log.info
    ) -> dict[int, int]:
        """Until `wanted` of these clients are here, or the time is over."""
        deadline, told = time.monotonic() + seconds, -1
        while (here := len(self.refresh().keys() & set(clients))) < wanted and time.monotonic() < deadline:
            if here != told:
                told = here
                tell(f"{here} of {wanted} sites are here")
            time.sleep(0.2)
        return self.nodes

    def _greet(self, nodes: Sequence[int]) -> None:
        if nodes:
            hello = [wire.question(wire.HELLO, node, self._plan, Request(self._run, -1), None, {}) for node in nodes]
            names = self._grid.push_messages(hello)
            self._greeted |= {name: node for name, node in zip(names, nodes, strict=False) if name}

    def _meet(self, node: int, registered: str, reply: Message) -> None:
        try:
            if reply.has_error():
                raise Refused(wire.one_line(str(reply.error.reason)))
            said = wire.introduction_of(reply)
            if not 0 <= said.client < len(self._sites) or self._sites[said.client] != said.site:
                raise Refused(f"'{said.site}' is not client {said.client} of this federation")
            if registered in self._sites and registered != said.site:
                raise Refused(f"it says that it is '{said.site}', but is registered as '{registered}'")
        except Refused as why:
            self._refused[node] = time.monotonic()
            log.warning("node %s refused: %s", registered or node, why)
            return
        if said.client in self.nodes:
            log.warning("node %s refused: '%s' is here already, at another node", registered or node, said.site)
        else:
            log.info("site %s is here (node %s)", said.site, node)
        self._claims[node] = said.client
        if said.release != __version__:
            log.warning("site %s runs fedspecial %s, the server %s", said.site, said.release, __version__)
