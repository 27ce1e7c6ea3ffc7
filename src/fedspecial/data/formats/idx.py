"""idx files, plain or gzipped, as MNIST and EMNIST are published: a big-endian header, then bytes."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from fedspecial.data.loading.bad_rows import BadRows, check_labels
from fedspecial.errors import InputError

PIECE = 2**14


def read(images: Path, labels: Path, bad: BadRows, num_classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, height, width) and labels (n,). Rows that are missing from a truncated file are bad rows."""
    pixels, announced = _array(images, 3)
    y, announced_labels = _array(labels, 1)
    if announced != announced_labels:
        raise InputError(f"{images.name}: {announced} images, but {labels.name} has {announced_labels} labels")
    complete = min(len(pixels), len(y))
    if complete < announced:
        short = images.name if len(pixels) < announced else labels.name
        for row in range(complete, announced):
            bad.add(row, f"{short}: truncated at row {complete + 1}: {announced} rows announced, {complete} found")
    x = np.zeros((announced, *pixels.shape[1:]), np.uint8)
    x[:complete] = pixels[:complete]
    full = np.zeros(announced, np.int64)
    full[:complete] = y[:complete]
    check_labels(full, num_classes, labels.name, bad)
    return x, full


def _array(path: Path, dimensions: int) -> tuple[np.ndarray, int]:
    """The complete rows of a file, and the number of rows that its header announces."""
    raw, damage = _bytes(path)
    head = 4 + 4 * dimensions
    if len(raw) < head:
        raise InputError(f"{path.name}: {damage or 'too short for an idx header'}")
    zero, kind, rank = struct.unpack(">HBB", raw[:4])
    if zero != 0 or kind != 8 or rank != dimensions:
        raise InputError(f"{path.name}: not an idx file of bytes with {dimensions} dimensions (magic {raw[:4].hex()})")
    count, *sides = struct.unpack(f">{dimensions}I", raw[4:head])
    row = int(np.prod(sides, dtype=np.int64)) if sides else 1
    if row == 0:
        raise InputError(f"{path.name}: its header announces images without pixels ({'×'.join(map(str, sides))})")
    complete = min((len(raw) - head) // row, count)
    return np.frombuffer(raw, np.uint8, complete * row, head).reshape(complete, *sides), count


def _bytes(path: Path) -> tuple[bytes, str]:
    """All bytes that can be decompressed, and a description of the damage if there is any.

    Decompressed piece by piece, because a gzip reader that reaches the end too early returns nothing of its last piece.
    """
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw, ""
    parts: list[bytes] = []
    unpack = zlib.decompressobj(wbits=31)
    try:
        for start in range(0, len(raw), PIECE):
            parts.append(unpack.decompress(raw[start : start + PIECE]))
            while unpack.eof and unpack.unused_data:
                rest, unpack = unpack.unused_data, zlib.decompressobj(wbits=31)
                parts.append(unpack.decompress(rest))
    except zlib.error as error:
        return b"".join(parts), f"not a complete gzip file ({error})"
    return b"".join(parts), "" if unpack.eof else "not a complete gzip file (it ends too early)"
