"""What a site stores on disk between messages: client states by version, payloads by hash.

Flower may start a new process for each message, so nothing is kept in memory. A version is written atomically and never
overwrites the one it is based on. Old versions are deleted only when the server no longer lists them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from fedspecial.core.files import write_atomic
from fedspecial.core.messages import ClientState, Tensors, pack, raw_bytes, unpack
from fedspecial.errors import InputError


class SiteStore:
    """The files of one run at one site."""

    def __init__(self, folder: Path, run: str) -> None:
        if not run.isalnum():
            raise InputError(f"run={run!r}: not a valid run identifier")
        self.folder = folder / run

    def load_state(self, version: str) -> ClientState | None:
        """The client state of this version; empty for version "", None if the file is missing."""
        if not version:
            return ClientState()
        path = self._state_path(version)
        return ClientState.from_bytes(path.read_bytes()) if path.exists() else None

    def save_state(self, version: str, state: ClientState, keep: Collection[str]) -> None:
        """Write a version, then delete all versions that are not in `keep`."""
        self._write(self._state_path(version), state.to_bytes())
        kept = {self._state_path(name) for name in (*keep, version) if name}
        for path in (self.folder / "states").glob("*.safetensors"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def update_payloads(self, digests: Mapping[str, str], received: Tensors) -> tuple[dict[str, Tensor], list[str]]:
        """Store received payloads and delete replaced ones.

        Returns (hash → payload for all payloads in `digests` that are stored, names of those that are missing).
        """
        if not digests and not received:
            return {}, []
        for name, tensor in received.items():
            digest = hashlib.sha256(raw_bytes(tensor)).hexdigest()
            if digests.get(name) != digest:
                raise InputError(f"payload '{name}': its content does not match its hash")
            if not self._payload_path(digest).exists():
                self._write(self._payload_path(digest), pack({"data": tensor}))
        self._delete_replaced(digests)
        paths = {digest: self._payload_path(digest) for digest in digests.values()}
        stored = {digest: unpack(path.read_bytes())[0]["data"] for digest, path in paths.items() if path.exists()}
        return stored, sorted(name for name, digest in digests.items() if digest not in stored)

    def _delete_replaced(self, digests: Mapping[str, str]) -> None:
        path = self.folder / "payloads.json"
        before: dict[str, str] = json.loads(path.read_bytes()) if path.exists() else {}
        after = {**before, **digests}
        if after == before:
            return
        self._write(path, json.dumps(after).encode())
        for digest in set(before.values()) - set(after.values()):
            self._payload_path(digest).unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        """Folders are created on the first write, since most methods have no client state."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
        except OSError as error:
            raise InputError(f"state={self.folder.parent}: cannot be written ({error.strerror})") from None

    def _state_path(self, version: str) -> Path:
        return self.folder / "states" / f"{_safe_name(version)}.safetensors"

    def _payload_path(self, digest: str) -> Path:
        return self.folder / "payloads" / f"{_safe_name(digest)}.safetensors"


def _safe_name(name: str) -> str:
    """A name from a message must not lead outside the folder."""
    if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
        raise InputError(f"{name!r}: not a valid version or hash")
    return name
