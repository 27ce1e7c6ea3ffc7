"""The binary version of CIFAR-100: records of a coarse label, a fine label and 3,072 bytes of pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedspecial.data.loading.bad_rows import BadRows, Chunk, check_labels

NUM_CLASSES = 100
RECORD = 2 + 3 * 32 * 32


def count(path: Path) -> int:
    """The number of samples, from the size of the file."""
    return path.stat().st_size // RECORD


def read(path: Path, bad: BadRows) -> Chunk:
    """Images (n, 3, 32, 32) and fine labels."""
    raw = np.fromfile(path, dtype=np.uint8)
    complete = len(raw) // RECORD
    if len(raw) % RECORD:
        bad.add(complete, f"{path.name}: truncated at row {complete + 1}: {len(raw) % RECORD} of {RECORD} bytes")
    records = raw[: complete * RECORD].reshape(complete, RECORD)
    y = records[:, 1].astype(np.int64)
    check_labels(y, NUM_CLASSES, path.name, bad)
    rows = np.setdiff1d(np.arange(complete), [row for row, _ in bad.found])
    return records[rows, 2:].reshape(-1, 3, 32, 32), y[rows]
