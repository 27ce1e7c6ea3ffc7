"""What clients keep between their rounds: in memory up to a limit, and on disk, where a state is named by its content.

A state is written to disk when a checkpoint is made, or before that when memory is needed for other clients. A new
version never overwrites the old one: until the server has committed a round, a replay finds the state that the round
began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedspecial.core.files import BlobStore
from fedspecial.core.messages import ClientState

MEMORY_LIMIT = 1 << 30
"""Bytes of states in memory. The largest states of the built-in methods are two ResNet-18 models per client (90 MB), so
the eight clients of the paper's federation fit in it."""


@dataclass
class _Cached:
    """A state in memory: as an object, which is handed out without a copy, or packed, as worker processes take it.

    versions: identity of a tensor → its version counter when it was stored, which tells whether it was written to
    """

    state: ClientState | bytes
    versions: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def of(state: ClientState | bytes) -> _Cached:
        if isinstance(state, bytes):
            return _Cached(state)
        return _Cached(state, {id(tensor): tensor._version for tensor in _tensors(state)})

    @property
    def size(self) -> int:
        if isinstance(self.state, bytes):
            return len(self.state)
        return sum(tensor.nbytes for tensor in _tensors(self.state))

    def owns(self, tensor: Tensor) -> bool:
        """Whether this tensor is a part of the state and still has the value that was stored."""
        return id(tensor) in self.versions and self.versions[id(tensor)] == tensor._version

    def packed(self, client: int) -> bytes:
        return self.state if isinstance(self.state, bytes) else self.unpacked(client).to_bytes()

    def unpacked(self, client: int) -> ClientState:
        if isinstance(self.state, bytes):
            return ClientState.from_bytes(self.state)
        if not all(map(self.owns, _tensors(self.state))):
            raise RuntimeError(
                f"client {client}: a tensor of its state was changed in place in a round without an update; "
                "replace the tensor instead"
            )
        return self.state


class ClientStates:
    """client → its state. The least recently used states are dropped from memory when they exceed `limit` bytes."""

    def __init__(self, blobs: BlobStore, index: Mapping[str, str], limit: int = MEMORY_LIMIT) -> None:
        self._blobs = blobs
        self._limit = limit
        self._stored = {int(client): blob for client, blob in index.items()}
        self._cached: dict[int, _Cached] = {}  # the least recently used first
        self._unsaved: set[int] = set()
        self._size = 0

    @property
    def index(self) -> dict[int, str]:
        """client → content of its state, all of them stored: all that a checkpoint has to contain."""
        for client in sorted(self._unsaved):
            self._write(client)
        return self._stored

    def content(self, client: int) -> str | None:
        """The hash of a client's state, None where it has none; equal states have equal hashes."""
        if client in self._unsaved:
            self._write(client)
        return self._stored.get(client)

    def load(self, client: int) -> ClientState:
        """The state for the client's next round. Its tensors may be written to if it is saved afterwards."""
        cached = self._cached.get(client)
        if cached is None and client not in self._stored:
            return ClientState()
        if cached is None or isinstance(cached.state, bytes):
            state = ClientState.from_bytes(self.load_bytes(client))
            self._keep(client, _Cached.of(state))
        else:
            state = cached.unpacked(client)
            self._keep(client, cached)
        return _with(state, dict(state.models), dict(state.tensors))

    def copy(self, client: int) -> ClientState:
        """The state in tensors of its own, for work that is not saved."""
        cached = self._cached.get(client)
        if cached is None or isinstance(cached.state, bytes):
            return ClientState.from_bytes(self.load_bytes(client))
        state = cached.unpacked(client)
        models, tensors = ({k: v.clone() for k, v in part.items()} for part in (state.models, state.tensors))
        return _with(state, models, tensors)

    def save(self, client: int, state: ClientState) -> None:
        """Keep a state. What is new in it is copied, because it may share memory with the model or with a message."""
        if not state:
            return self._forget(client)
        before = self._cached.get(client) or _Cached(b"")

        def own(tensor: Tensor) -> Tensor:
            if before.owns(tensor):
                return tensor
            return tensor.detach().clone() if tensor.device.type == "cpu" else tensor.detach().cpu()

        models, tensors = ({k: own(v) for k, v in part.items()} for part in (state.models, state.tensors))
        kept = _with(state, models, tensors)
        if not _same(before.state, kept):
            self._unsaved.add(client)
        self._keep(client, _Cached.of(kept))

    def load_bytes(self, client: int) -> bytes:
        """The state as it is stored; empty where the client has none."""
        cached = self._cached.get(client)
        if cached is None and client not in self._stored:
            return b""
        if cached is None:
            cached = _Cached(self._blobs.get(self._stored[client]))
        self._keep(client, cached)
        return cached.packed(client)

    def save_bytes(self, client: int, state: bytes) -> None:
        if not state:
            return self._forget(client)
        cached = self._cached.get(client)
        if cached is None or cached.state != state:
            self._unsaved.add(client)
            cached = _Cached(state)
        self._keep(client, cached)

    def _keep(self, client: int, cached: _Cached) -> None:
        """Make this the most recently used state, and drop others from memory as far as needed."""
        self._drop(client)
        self._cached[client] = cached
        self._size += cached.size
        while self._size > self._limit:
            oldest = next(iter(self._cached))
            if oldest in self._unsaved:
                self._write(oldest)
            self._drop(oldest)

    def _write(self, client: int) -> None:
        self._stored[client] = self._blobs.put(self._cached[client].packed(client))
        self._unsaved.discard(client)

    def _drop(self, client: int) -> None:
        cached = self._cached.pop(client, None)
        self._size -= cached.size if cached else 0

    def _forget(self, client: int) -> None:
        self._drop(client)
        self._unsaved.discard(client)
        self._stored.pop(client, None)


def _tensors(state: ClientState) -> list[Tensor]:
    return [*state.models.values(), *state.tensors.values()]


def _same(before: ClientState | bytes, state: ClientState) -> bool:
    """Whether a state consists of the same tensors and numbers as before."""
    if isinstance(before, bytes) or (before.numbers, before.outputs) != (state.numbers, state.outputs):
        return False
    pairs = ((before.models, state.models), (before.tensors, state.tensors))
    return all(old.keys() == new.keys() and all(old[k] is new[k] for k in new) for old, new in pairs)


def _with(state: ClientState, models: dict[str, Tensor], tensors: dict[str, Tensor]) -> ClientState:
    return ClientState(models, tensors, dict(state.numbers), state.outputs)
