"""Labelled texts, one per line: tab-separated columns under a header (GLUE, MRPC) or `label<TAB>text` (FDU-MTL).

Files are read as bytes and decoded line by line, so that a line in another encoding is one bad sample and not a bad
file.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedspecial.data.loading.bad_rows import BadRows
from fedspecial.errors import InputError, did_you_mean


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and their labels. Each text is a tuple of one string, or of two for a pair of sentences."""

    texts: tuple[tuple[str, ...], ...]
    labels: np.ndarray

    def take(self, rows: np.ndarray) -> LabelledTexts:
        return LabelledTexts(tuple(self.texts[row] for row in rows), self.labels[rows])


def lines(path: Path, display_name: str, bad: BadRows, *, header: bool = False) -> Iterator[tuple[int, str]]:
    """Row numbers from 0 and decoded lines; a byte-order mark is removed, empty lines are skipped.

    header: the first line names the columns, so it is never skipped: the next one would be taken for it
    """
    for row, raw in enumerate(_content(path, display_name).removeprefix(b"\xef\xbb\xbf").split(b"\n")):
        raw = raw.rstrip(b"\r")
        if not raw.strip():
            continue
        try:
            yield row, raw.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = f"0x{raw[error.start]:02x}"
            place = f"{display_name}: row {row + 1}"
            message = f"{place}: not UTF-8 text (byte {byte} at position {error.start + 1}); save the file as UTF-8"
            if header:
                raise InputError(message) from None
            bad.add(row, message)
        header = False


def _content(path: Path, display_name: str) -> bytes:
    """The bytes of a file, decompressed if it is gzip, which its first two bytes tell."""
    data = path.read_bytes()
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{display_name}: the gzip file is damaged ({error})") from None


def read_columns(
    path: Path, display_name: str, columns: Sequence[str], label: str, values: Mapping[str, int], bad: BadRows
) -> LabelledTexts:
    """Tab-separated columns under a header, without quoting: a quotation mark is an ordinary character."""
    rows = lines(path, display_name, bad, header=True)
    header = next(rows, (0, ""))[1].split("\t")
    for name in (*columns, label):
        if name not in header:
            raise InputError(
                f"{display_name}: row 1: no column '{name}' among {', '.join(header)}{did_you_mean(name, header)}"
            )
    wanted, target = [header.index(name) for name in columns], header.index(label)
    texts, labels = [], []
    for row, line in rows:
        cells = line.split("\t")
        if len(cells) != len(header):
            bad.add(row, f"{display_name}: row {row + 1}: {len(cells)} columns, expected {len(header)}")
        elif (value := cells[target].strip()) not in values:
            bad.add(row, _unknown_label(display_name, row, value, values))
        else:
            texts.append(tuple(cells[cell] for cell in wanted))
            labels.append(values[value])
    return LabelledTexts(tuple(texts), np.array(labels, np.int64))


def read_labelled(path: Path, display_name: str, values: Mapping[str, int], bad: BadRows) -> LabelledTexts:
    """`label<TAB>text` without a header."""
    texts, labels = [], []
    for row, line in lines(path, display_name, bad):
        value, tab, text = line.partition("\t")
        if not tab:
            bad.add(row, f"{display_name}: row {row + 1}: no tab between label and text")
        elif value.strip() not in values:
            bad.add(row, _unknown_label(display_name, row, value, values))
        else:
            texts.append((text,))
            labels.append(values[value.strip()])
    return LabelledTexts(tuple(texts), np.array(labels, np.int64))


def _unknown_label(display_name: str, row: int, value: str, values: Mapping[str, int]) -> str:
    return f"{display_name}: row {row + 1}: label {value.strip()!r} is not one of {', '.join(values)}"
