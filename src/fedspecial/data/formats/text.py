"""Labelled texts, a line each: GLUE's and MRPC's columns, FDU-MTL's `label<TAB>text`, JSON lines.

Files are read as bytes and decoded line by line, so that one line in another encoding is one bad line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspecial.data.formats.common import Bad
from fedspecial.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Texts:
    """Each text is one string or a pair of them; `labels` are numbers."""

    texts: tuple[tuple[str, ...], ...]
    labels: np.ndarray

    def take(self, rows: np.ndarray) -> Texts:
        return Texts(tuple(self.texts[row] for row in rows), self.labels[rows])


def lines(path: Path, shown: str, bad: Bad) -> Iterator[tuple[int, str]]:
    """Row numbers from 0 and decoded lines; a byte-order mark is taken off, empty lines are passed over."""
    for row, raw in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")):
        raw = raw.rstrip(b"\r")
        if not raw.strip():
            continue
        try:
            yield row, raw.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"0x{raw[error.start]:02x}"
            bad.add(row, f"{shown}: row {row + 1}: not UTF-8 text (byte {byte} at position {error.start + 1})")


def read_columns(
    path: Path, shown: str, columns: Sequence[str], label: str, values: Mapping[str, int], bad: Bad
) -> Texts:
    """Tab-separated columns under a header, without quoting: a quotation mark is a character like others."""
    rows = lines(path, shown, bad)
    header = next(rows, (0, ""))[1].split("\t")
    for name in (*columns, label):
        if name not in header:
            raise InputError(
                f"{shown}: row 1: no column '{name}' among {', '.join(header)}{did_you_mean(name, header)}"
            )
    wanted, target = [header.index(name) for name in columns], header.index(label)
    texts, labels = [], []
    for row, line in rows:
        cells = line.split("\t")
        if len(cells) != len(header):
            bad.add(row, f"{shown}: row {row + 1}: {len(cells)} columns, expected {len(header)}")
        elif (value := cells[target].strip()) not in values:
            bad.add(row, _outside(shown, row, value, values))
        else:
            texts.append(tuple(cells[cell] for cell in wanted))
            labels.append(values[value])
    return Texts(tuple(texts), np.array(labels, np.int64))


def read_labelled(path: Path, shown: str, values: Mapping[str, int], bad: Bad) -> Texts:
    """`label<TAB>text` without a header."""
    texts, labels = [], []
    for row, line in lines(path, shown, bad):
        value, tab, text = line.partition("\t")
        if not tab:
            bad.add(row, f"{shown}: row {row + 1}: no tab between label and text")
        elif value.strip() not in values:
            bad.add(row, _outside(shown, row, value, values))
        else:
            texts.append((text,))
            labels.append(values[value.strip()])
    return Texts(tuple(texts), np.array(labels, np.int64))


def read_json(path: Path, shown: str, fields: Sequence[str], bad: Bad) -> list[tuple[int, dict[str, Any]]]:
    """One JSON object a line, each with all the fields."""
    found = []
    for row, line in lines(path, shown, bad):
        try:
            item = json.loads(line)
        except ValueError as error:
            bad.add(row, f"{shown}: row {row + 1}: not JSON ({error})")
            continue
        missing = [name for name in fields if not isinstance(item, dict) or item.get(name) is None]
        if missing:
            near = did_you_mean(missing[0], item) if isinstance(item, dict) else ""
            bad.add(row, f"{shown}: row {row + 1}: no field '{missing[0]}'{near}")
            continue
        found.append((row, item))
    return found


def _outside(shown: str, row: int, value: str, values: Mapping[str, int]) -> str:
    return f"{shown}: row {row + 1}: label {value.strip()!r} is not one of {', '.join(values)}"
