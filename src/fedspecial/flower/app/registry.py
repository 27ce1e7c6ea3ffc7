"""Which site is connected at which Flower node. Node ids change with every registration; the names of sites do not."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedspecial.flower.app import wire
from fedspecial.flower.app.wire import SiteRequest
from fedspecial.flower.arrays import RefusedReply

log = logging.getLogger("fedspecial.flower")
REFUSED_SECONDS = 60.0  # then a refused node is asked again, since its configuration may have been corrected


class SiteRegistry:
    """Asks new nodes for their site and remembers the answer.

    If two connected nodes claim the same site, it belongs to the one that claimed it first until that node disconnects.
    A node can claim only the site under whose name its key is registered at the SuperLink.
    """

    def __init__(
        self,
        grid: Grid,
        plan: str,
        run: str,
        sites: Sequence[str],
        frozen: str | None = None,
        registered_only: bool = True,
        absent: Collection[int] = (),
    ) -> None:
        """
        frozen:          hash of the frozen part of the server's model, which every site must have too
        registered_only: refuse nodes without a registered name, which every node of an unprotected SuperLink is
        absent:          clients that left the federation
        """
        self._grid, self._plan, self._run, self._sites, self._frozen = grid, plan, run, sites, frozen or ""
        self._registered_only, self._absent = registered_only, absent
        self._pending: dict[str, int] = {}
        self._claims: dict[int, int] = {}
        self.sessions: dict[int, int] = {}
        """Client → how often it has connected; after a restart it does not answer what it was asked before."""
        self._refused: dict[int, float] = {}
        self._activated: dict[int, str] = {}

    @property
    def nodes(self) -> dict[int, int]:
        """Client → node, for all connected sites."""
        return {client: node for node, client in reversed(self._claims.items())}

    def refresh(self) -> dict[int, int]:
        """Remove disconnected nodes, read pending replies and ask new nodes to identify themselves; does not wait."""
        found = list(self._grid.get_nodes())
        registered = {node.node_id: node.name for node in found}
        same = self._same_as_before({node.node_id: node.last_activated_at for node in found})
        self._claims = {node: client for node, client in self._claims.items() if node in same}
        expired = time.monotonic() - REFUSED_SECONDS
        self._refused = {node: when for node, when in self._refused.items() if node in same and when > expired}
        self._pending = {message_id: node for message_id, node in self._pending.items() if node in same}
        known = {*self._claims, *self._refused, *self._pending.values()}
        self._ask_to_identify(sorted(registered.keys() - known))
        for reply in self._grid.pull_messages(list(self._pending)) if self._pending else ():
            node = self._pending.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                self._read_identity(node, registered[node], reply)
        return self.nodes

    def _same_as_before(self, activated: dict[int, str]) -> set[int]:
        """The nodes that have not been restarted since the last call. A restarted node keeps its id, and may have been
        away for too short a time to be missed."""
        before, self._activated = self._activated, activated
        return {node for node, when in activated.items() if before.get(node, when) == when}

    def wait(self, clients: Collection[int], count: int, seconds: float) -> dict[int, int]:
        """Wait until `count` of these clients are connected, or until the time is over."""
        deadline, reported = time.monotonic() + seconds, -1
        while (connected := len(self.refresh().keys() & set(clients))) < count and time.monotonic() < deadline:
            if connected != reported:
                reported = connected
                log.info("waiting for sites: %d of %d are connected", connected, count)
            time.sleep(0.2)
        return self.nodes

    def _ask_to_identify(self, nodes: Sequence[int]) -> None:
        if nodes:
            request = SiteRequest(self._run, -1, frozen=self._frozen)
            messages = [wire.make_request(wire.IDENTIFY, node, self._plan, request, None, {}) for node in nodes]
            message_ids = self._grid.push_messages(messages)
            self._pending |= {key: node for key, node in zip(message_ids, nodes, strict=False) if key}

    def _read_identity(self, node: int, registered: str, reply: Message) -> None:
        try:
            if reply.has_error():
                raise RefusedReply(str(reply.error.reason))
            header = wire.read_header(reply)
            if header.problem is not None:
                raise RefusedReply(header.problem)
            if not 0 <= header.client < len(self._sites) or self._sites[header.client] != header.site:
                raise RefusedReply(f"'{header.site}' is not client {header.client} of this federation")
            if header.client in self._absent:
                raise RefusedReply(f"'{header.site}' was removed from this federation")
            if registered != header.site and (registered or self._registered_only):
                name = f"as '{registered}'" if registered else "without a name"
                raise RefusedReply(f"it claims to be '{header.site}', but is registered {name}")
            if header.frozen != self._frozen:
                raise RefusedReply(
                    f"the frozen weights of site '{header.site}' differ from the server's (hash "
                    f"{header.frozen[:12] or 'none'}, not {self._frozen[:12]}); give all sites the same weights"
                )
        except RefusedReply as reason:
            self._refused[node] = time.monotonic()
            log.warning("node %s refused: %s", registered or node, reason)
            return
        if header.client in self.nodes:
            log.warning("node %s refused: '%s' is already connected at another node", registered or node, header.site)
        else:
            log.info("site %s connected (node %s)", header.site, node)
            self.sessions[header.client] = self.sessions.get(header.client, 0) + 1
        self._claims[node] = header.client
