"""LIBSVM text: `label index:value …`, indices from 1; an index that is absent from a line has the value 0.

USPS is published in this format (labels 1…10 for digits 0…9, values −1…1), and so are the gas sensor measurements
(labels 1…6, sometimes followed by the concentration of the gas: `1;10.0 1:15596.2 …`).
"""

from __future__ import annotations

import bz2
from pathlib import Path

import numpy as np

from fedspecial.data.loading.bad_rows import BadRows, check_labels
from fedspecial.errors import InputError


def read(path: Path, bad: BadRows, side: int = 16, num_classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, side, side) as uint8, from values −1…1, and labels from 0."""
    x, y = read_features(path, bad, side * side, num_classes)
    pixels = np.rint((x.clip(-1, 1) + 1) * 127.5).astype(np.uint8)
    return pixels.reshape(-1, side, side), y


def read_features(path: Path, bad: BadRows, width: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Values (n, width) as float64, and labels from 0."""
    rows = lines(path)
    x = np.zeros((len(rows), width))
    y = np.zeros(len(rows), np.int64)
    for row, line in enumerate(rows):
        try:
            y[row], x[row] = _line(line, width)
        except (ValueError, IndexError):
            bad.add(row, f"{path.name}: row {row + 1}: not 'label index:value …' with indices 1…{width}")
    check_labels(y, num_classes, path.name, bad)
    return x, y


def lines(path: Path) -> list[bytes]:
    """One line per sample."""
    try:
        raw = bz2.decompress(path.read_bytes()) if path.suffix == ".bz2" else path.read_bytes()
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path.name}: not a complete bzip2 file ({error})") from None
    return [line for line in raw.split(b"\n") if line.strip()]


def _line(line: bytes, width: int) -> tuple[int, np.ndarray]:
    label, _, pairs = line.strip().partition(b" ")
    numbers = np.array(pairs.replace(b":", b" ").split(), dtype=np.float64)
    index, value = numbers[0::2].astype(np.int64), numbers[1::2]
    if len(index) != len(value) or len(index) == 0 or index.min() < 1 or not np.isfinite(value).all():
        raise ValueError
    values = np.zeros(width)
    values[index - 1] = value
    return int(float(label.split(b";")[0])) - 1, values
