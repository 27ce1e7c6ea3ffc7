"""PayloadTracker are sent once: a client that already holds a content does not get it again."""

from __future__ import annotations

import hashlib

from torch import Tensor

from fedspecial.core.messages import Broadcast
from fedspecial.core.vector import raw_bytes


class PayloadTracker:
    """Which client holds the current content of which payload; clients drop a content when it is replaced."""

    def __init__(self, holders: dict[str, tuple[str, list[int]]] | None = None) -> None:
        self._holders = {name: (digest, set(clients)) for name, (digest, clients) in (holders or {}).items()}
        self._known: dict[str, tuple[Tensor, int, str]] = {}

    def deliver(self, client: int, message: Broadcast) -> frozenset[str]:
        """The payloads of a message that the client holds already; from now on it holds all of them."""
        held = self.held(client, message)
        for name, tensor in message.payloads.items():
            digest = self.digest(name, tensor)
            current, clients = self._holders.get(name, ("", set()))
            self._holders[name] = (digest, {*clients, client} if current == digest else {client})
        return held

    def held(self, client: int, message: Broadcast) -> frozenset[str]:
        """The payloads of a message whose content the client holds, under any name."""
        own = {digest for digest, clients in self._holders.values() if client in clients}
        return frozenset(name for name, tensor in message.payloads.items() if self.digest(name, tensor) in own)

    def forget(self, client: int) -> None:
        """The client has lost what it held."""
        for _, clients in self._holders.values():
            clients.discard(client)

    def to_json(self) -> dict[str, tuple[str, list[int]]]:
        return {name: (digest, sorted(clients)) for name, (digest, clients) in self._holders.items()}

    def digest(self, name: str, tensor: Tensor) -> str:
        """Hash of a payload, computed once for as long as the tensor is not written to."""
        known = self._known.get(name)
        if known is None or known[0] is not tensor or known[1] != tensor._version:
            digest = hashlib.sha256(raw_bytes(tensor)).hexdigest()
            known = self._known[name] = (tensor, tensor._version, digest)
        return known[2]
