"""LIBSVM text, the format of USPS: `label index:value …`, labels 1…10 for digits 0…9, values −1…1."""

from __future__ import annotations

import bz2
from pathlib import Path

import numpy as np

from fedspecial.data.loading.bad_rows import BadRows, check_labels
from fedspecial.errors import InputError


def read(path: Path, bad: BadRows, side: int = 16, num_classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, side, side) as uint8 and labels from 0. An index that is absent from a line has the value 0."""
    rows = lines(path)
    x = np.zeros((len(rows), side * side), np.uint8)
    y = np.zeros(len(rows), np.int64)
    for row, line in enumerate(rows):
        try:
            y[row], x[row] = _line(line, side * side)
        except (ValueError, IndexError):
            bad.add(row, f"{path.name}: row {row + 1}: not 'label index:value …' with indices 1…{side * side}")
    check_labels(y, num_classes, path.name, bad)
    return x.reshape(-1, side, side), y


def lines(path: Path) -> list[bytes]:
    """One line per sample."""
    try:
        raw = bz2.decompress(path.read_bytes()) if path.suffix == ".bz2" else path.read_bytes()
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path.name}: not a complete bzip2 file ({error})") from None
    return [line for line in raw.split(b"\n") if line.strip()]


def _line(line: bytes, width: int) -> tuple[int, np.ndarray]:
    numbers = np.array(line.replace(b":", b" ").split(), dtype=np.float64)
    label, index, value = numbers[0], numbers[1::2].astype(np.int64), numbers[2::2]
    if len(index) != len(value) or len(index) == 0 or index.min() < 1 or not np.isfinite(value).all():
        raise ValueError
    values = np.zeros(width)
    values[index - 1] = value
    return int(label) - 1, np.rint((values.clip(-1, 1) + 1) * 127.5).astype(np.uint8)
