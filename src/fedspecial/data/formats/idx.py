"""idx files, plain or gzipped, as MNIST and EMNIST are published: a big-endian header, then bytes."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from fedspecial.data.formats.common import Bad, check_labels
from fedspecial.errors import InputError

PIECE = 2**14


def read(images: Path, labels: Path, bad: Bad, num_classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, height, width) and labels (n,). Rows that a truncated file lacks are bad ones."""
    pictures, promised = _array(images, 3)
    y, promised_labels = _array(labels, 1)
    if promised != promised_labels:
        raise InputError(f"{images.name}: {promised} images, but {labels.name} has {promised_labels} labels")
    whole = min(len(pictures), len(y))
    if whole < promised:
        short = images.name if len(pictures) < promised else labels.name
        for row in range(whole, promised):
            bad.add(row, f"{short}: truncated at row {whole + 1}: {promised} rows promised, {whole} are there")
    x = np.zeros((promised, *pictures.shape[1:]), np.uint8)
    x[:whole] = pictures[:whole]
    full = np.zeros(promised, np.int64)
    full[:whole] = y[:whole]
    check_labels(full, num_classes, labels.name, bad)
    return x, full


def _array(path: Path, dimensions: int) -> tuple[np.ndarray, int]:
    """The whole rows a file has, and how many its header promises."""
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
        raise InputError(f"{path.name}: its header gives images of no size ({'×'.join(map(str, sides))})")
    whole = min((len(raw) - head) // row, count)
    return np.frombuffer(raw, np.uint8, whole * row, head).reshape(whole, *sides), count


def _bytes(path: Path) -> tuple[bytes, str]:
    """All bytes that can be had, and what went wrong if not all could.

    Unpacked piece by piece, since a gzip reader that meets the end too soon gives nothing of its last piece.
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
        return b"".join(parts), f"not a whole gzip file ({error})"
    return b"".join(parts), "" if unpack.eof else "not a whole gzip file (it ends too soon)"
