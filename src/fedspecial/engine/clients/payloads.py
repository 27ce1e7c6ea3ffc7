"""Payloads are sent once: a client that already has a content does not get it again."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

from torch import Tensor

from fedspecial.core.messages import Broadcast, broadcast_size, raw_bytes


class DigestCache:
    """Hashes of tensors, computed once for as long as the tensor of a name is not replaced or written to."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Tensor, Hashable, str]] = {}

    def digest(self, name: str, tensor: Tensor) -> str:
        # The last tensor of each name is kept, so its memory cannot be given to another one in the meantime.
        version = 0 if tensor.is_inference() else tensor._version
        memory = (tensor.data_ptr(), version, tensor.shape, tensor.stride(), tensor.dtype)
        known = self._known.get(name)
        if known is None or known[1] != memory:
            known = self._known[name] = (tensor, memory, hashlib.sha256(raw_bytes(tensor)).hexdigest())
        return known[2]

    def content(self, message: Broadcast) -> Hashable:
        """What a message contains, by value."""
        tensors = {**message.vectors, **{f"payload/{name}": tensor for name, tensor in message.payloads.items()}}
        digests = tuple((name, self.digest(name, tensor)) for name, tensor in tensors.items())
        return digests, tuple(message.numbers.items()), tuple(message.roles.items())


class PayloadTracker:
    """Which client has the current content of which payload; clients drop a content when it is replaced."""

    def __init__(self, holders: dict[str, tuple[str, list[int]]] | None = None) -> None:
        self._holders = {name: (digest, set(clients)) for name, (digest, clients) in (holders or {}).items()}
        self._digests = DigestCache()

    def deliver(self, client: int, message: Broadcast) -> frozenset[str]:
        """The payloads of a message that the client has already; from now on it has all of them."""
        present = self.present(client, message)
        for name, tensor in message.payloads.items():
            digest = self.digest(name, tensor)
            if name not in self._holders or self._holders[name][0] != digest:
                self._holders[name] = (digest, set())
            self._holders[name][1].add(client)
        return present

    def bytes_down(self, client: int, message: Broadcast) -> tuple[int, int]:
        """Deliver a message: the bytes that go down, and the part of them that is payloads."""
        if not message.payloads:
            return broadcast_size(message), 0
        total = broadcast_size(message, present=self.deliver(client, message))
        return total, total - broadcast_size(message, present=frozenset(message.payloads))

    def present(self, client: int, message: Broadcast) -> frozenset[str]:
        """The payloads of a message whose content the client has, under any name."""
        own = {digest for digest, clients in self._holders.values() if client in clients}
        return frozenset(name for name, tensor in message.payloads.items() if self.digest(name, tensor) in own)

    def forget(self, client: int) -> None:
        """The client has lost its payloads."""
        for _, clients in self._holders.values():
            clients.discard(client)

    def to_json(self) -> dict[str, tuple[str, list[int]]]:
        return {name: (digest, sorted(clients)) for name, (digest, clients) in self._holders.items()}

    def digest(self, name: str, tensor: Tensor) -> str:
        """The hash of a payload's content."""
        return self._digests.digest(name, tensor)
