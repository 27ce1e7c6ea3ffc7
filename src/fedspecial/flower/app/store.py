"""What a site keeps on its own disk between messages: states by version, payloads by content.

Each message to a site may meet a new process, so nothing lives in memory. A version is written whole or not at all and
never overwrites the one it came from; versions go only when the server has said which ones it may still come back to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from fedspecial.core.files import write_atomic
from fedspecial.core.messages import ClientState, Tensors, pack, unpack
from fedspecial.core.vector import raw_bytes
from fedspecial.errors import InputError


class SiteStore:
    """One run of a federation at one site."""

    def __init__(self, folder: Path, run: str) -> None:
        if not run.isalnum():
            raise InputError(f"run={run!r}: not the name of a run")
        self.folder = folder / run

    def load(self, version: str) -> ClientState | None:
        """The state of that version; empty for the first one, None where it is gone."""
        if not version:
            return ClientState()
        path = self._state(version)
        return ClientState.from_bytes(path.read_bytes()) if path.exists() else None

    def save(self, version: str, state: ClientState, keep: Collection[str]) -> None:
        """Write a version, then let go of those that nobody comes back to."""
        self._write(self._state(version), state.to_bytes())
        kept = {self._state(name) for name in (*keep, version) if name}
        for path in (self.folder / "states").glob("*.safetensors"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def take(self, digests: Mapping[str, str], sent: Tensors) -> tuple[dict[str, Tensor], list[str]]:
        """Keep the payloads that came and let replaced ones go; all that are named, by content, and what is missing."""
        if not digests and not sent:
            return {}, []
        for name, tensor in sent.items():
            digest = hashlib.sha256(raw_bytes(tensor)).hexdigest()
            if digests.get(name) != digest:
                raise InputError(f"payload '{name}': its content is not the one that was announced")
            if not self._payload(digest).exists():
                self._write(self._payload(digest), pack({"data": tensor}))
        self._forget_replaced(digests)
        held = {
            d: unpack(self._payload(d).read_bytes())[0]["data"] for d in digests.values() if self._payload(d).exists()
        }
        return held, sorted(name for name, digest in digests.items() if digest not in held)

    def _forget_replaced(self, digests: Mapping[str, str]) -> None:
        path = self.folder / "payloads.json"
        names: dict[str, str] = json.loads(path.read_bytes()) if path.exists() else {}
        old, renamed = set(names.values()), {**names, **digests}
        if renamed == names:
            return
        self._write(path, json.dumps(renamed).encode())
        for digest in old - set(renamed.values()):
            self._payload(digest).unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        """Folders come with the first thing that is kept; most methods keep nothing."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
        except OSError as error:
            raise InputError(f"state={self.folder.parent}: cannot be written ({error.strerror})") from None

    def _state(self, version: str) -> Path:
        return self.folder / "states" / f"{_plain(version)}.safetensors"

    def _payload(self, digest: str) -> Path:
        return self.folder / "payloads" / f"{_plain(digest)}.safetensors"


def _plain(name: str) -> str:
    """A name that came over the wire must not lead out of the folder."""
    if not name or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
        raise InputError(f"{name!r}: not a name of a version or a content")
    return name
