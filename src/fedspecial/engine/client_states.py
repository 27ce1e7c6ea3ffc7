"""What clients keep between their rounds: on disk, named by content, so that memory does not grow with their number.

A new version never overwrites the old one: until the server has committed a round, a replay finds the state that
the round began with.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedspecial.core.files import BlobStore
from fedspecial.core.messages import ClientState


class ClientStates:
    """client → content of its state; `index` is all that a checkpoint has to contain."""

    def __init__(self, blobs: BlobStore, index: Mapping[str, str]) -> None:
        self._blobs = blobs
        self.index = {int(client): blob for client, blob in index.items()}

    def load(self, client: int) -> ClientState:
        return ClientState.from_bytes(self.load_bytes(client))

    def save(self, client: int, state: ClientState) -> None:
        self.save_bytes(client, state.to_bytes() if state else b"")

    def load_bytes(self, client: int) -> bytes:
        """The state as it is stored; empty where the client has none."""
        return self._blobs.get(self.index[client]) if client in self.index else b""

    def save_bytes(self, client: int, state: bytes) -> None:
        if state:
            self.index[client] = self._blobs.put(state)
        else:
            self.index.pop(client, None)
