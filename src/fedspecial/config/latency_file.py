"""Measured latencies: a CSV file with the columns ``client`` and ``seconds``, one row for each measurement."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from fedspecial.errors import InputError

Latencies = dict[int, tuple[float, ...]]
"""Client → its measured latencies in seconds."""


def read_latencies(path: Path, clients: int) -> Latencies:
    """The latencies of all clients; a file that cannot be used is refused with the number of the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"latency={path}: expected none, constant, exponential, lognormal or a CSV file that can be read"
        ) from None
    rows = csv.reader(lines)
    header = [name.strip() for name in next(rows, [])]
    if header != ["client", "seconds"]:
        raise InputError(f"latency={path}: line 1 is {','.join(header) or 'missing'}, expected client,seconds")
    found: dict[int, list[float]] = {}
    for row in rows:
        if row:
            client, seconds = _values(path, rows.line_num, row)
            found.setdefault(client, []).append(seconds)
    missing = [client for client in range(clients) if client not in found]
    if missing:
        raise InputError(f"latency={path}: no row for client {missing[0]} (clients={clients}, counted from 0)")
    return {client: tuple(seconds) for client, seconds in found.items()}


def _values(path: Path, line: int, row: list[str]) -> tuple[int, float]:
    try:
        client, seconds = int(row[0]), float(row[1])
        if len(row) == 2 and client >= 0 and 0 <= seconds < math.inf:
            return client, seconds
    except (ValueError, IndexError):
        pass
    raise InputError(
        f"latency={path}: line {line} is {','.join(row)!r}, expected a client's number and seconds, not negative"
    )
