"""Servers for this machine only."""

from __future__ import annotations

HOST = "127.0.0.1"


def names_this_machine(host: str | None) -> bool:
    """Whether a Host header does, against DNS rebinding: a page of another site whose name leads here.

    The port may differ, because SSH can forward any port.
    """
    return (host or "").partition(":")[0] in (HOST, "localhost")
