"""The newest signed head of the server's audit log, kept by each site, so that the server cannot shorten its log.

A site refuses requests of a server whose log became shorter, whose line has another hash than before, or that signs
with another key than at first. The file is the site's proof; `fedspecial flower audit --head FILE` uses it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.flower.governance.signing import Receipt

FILE = "audit-head.json"


def keep_receipt(folder: Path, run: str, received: Mapping[str, Any], key: str = "") -> None:
    """Check a receipt against the one before it, and store it in the site's folder of this run.

    key: the public key that the server must sign with, if the site's policy names it
    """
    if not received:
        if key or (folder / FILE).exists():
            raise InputError("the server did not send the signed head of its audit log")
        return
    new = Receipt.of_json(received)
    if new.run != run or not new.valid:
        raise InputError("the signature of the server's audit log is not valid")
    if key and new.key != key:
        raise InputError("the server signs its audit log with another key than the policy's server_key")
    path = folder / FILE
    if path.exists():
        old = Receipt.of_json(json.loads(path.read_bytes()))
        if new.key != old.key:
            raise InputError("the server signs its audit log with another key than before")
        if new.n < old.n or (new.n == old.n and new.head != old.head):
            raise InputError(f"the server's audit log was cut or replaced: this site has its line {old.n}")
        if new == old:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(asdict(new)).encode())
