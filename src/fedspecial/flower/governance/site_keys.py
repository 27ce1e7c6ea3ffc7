"""The keys with which sites have connected, and those that an operator revoked. Needs neither Flower nor torch.

A key is named by its fingerprint, the SHA-256 of the public key as the SuperLink has it. The server writes a line
"site_key" to the audit log when a site connects with a key for the first time, and "key_revoked" when it applies a
revocation. A node with a revoked key is treated as absent, in the running round too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError

log = logging.getLogger("fedspecial.flower")
KEYS, REVOKED = "site-keys.json", "revoked-keys.json"


class SiteKeys:
    """append: writes a line of the audit log, given the event and its fields"""

    def __init__(self, run: Path, sites: Collection[str], append: Callable[[str, dict[str, Any]], None]) -> None:
        self._run, self._sites, self._append = run, sites, append
        self._known: dict[str, list[str]] = _read(run / KEYS)
        self._applied: set[str] = set(self._known.get("", []))

    def admit(self, name: str, public_key: bytes) -> bool:
        """Whether a node may take part; a node without a key, as in a trial without TLS, has none to revoke.

        A revoked key is out under every name, and without one, too.
        """
        if not public_key:
            return True
        key = hashlib.sha256(public_key).hexdigest()
        if name in self._sites:
            self._record(name, key)
        revoked = _read(self._run / REVOKED).get(key)
        if revoked is None:
            return True
        if key not in self._applied:
            site = revoked["site"]
            self._append("key_revoked", {"site": site, "key": key, "reason": revoked["reason"]})
            log.warning("site %s: its key %s… was revoked: %s", site, key[:12], revoked["reason"])
            self._applied.add(key)
            self._write()
        return False

    def _record(self, name: str, key: str) -> None:
        known = self._known.setdefault(name, [])
        if key not in known:
            self._append("site_key", {"site": name, "key": key, "number": len(known) + 1})
            known.append(key)
            self._write()

    def _write(self) -> None:
        write_atomic(self._run / KEYS, json.dumps({**self._known, "": sorted(self._applied)}, indent=1).encode())


def revoke(run: Path, site: str, key: str | None, reason: str) -> list[str]:
    """Revoke all keys with which a site has connected so far, or the one whose fingerprint begins with `key`."""
    reason = " ".join(reason.split())
    if not reason:
        raise InputError("--reason: say why the key is revoked")
    known = {name: keys for name, keys in _read(run / KEYS).items() if name}
    if site not in known:
        raise InputError(f"site={site}: it has not connected with a key yet (known: {', '.join(known) or 'none'})")
    chosen = [name for name in known[site] if name.startswith(key or "")]
    if not chosen or (key is not None and len(chosen) > 1):
        raise InputError(f"--key {key}: not the beginning of exactly one of {', '.join(k[:12] for k in known[site])}")
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    content = _read(run / REVOKED) | {name: {"site": site, "reason": reason, "time": when} for name in chosen}
    write_atomic(run / REVOKED, json.dumps(content, indent=1, ensure_ascii=False).encode())
    return chosen


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a JSON object; restore it, since it says which keys are revoked")
    return content
