"""From new files to the inputs of a trained model, with exactly the preprocessing of its training data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspecial.data.formats import csv_table, image_folders, jsonl
from fedspecial.data.input_arrays import normalised, scale_and_shift
from fedspecial.data.loading import table_rows, text_domains
from fedspecial.data.loading.bad_rows import BadRows, Notice, OnBad, ignore, report_skipped
from fedspecial.data.schema import DataSchema, TableEncoding, TextEncoding
from fedspecial.errors import InputError

BATCH = 256


@dataclass(frozen=True)
class InputBatch:
    """Some inputs, ready for the model.

    names: of each input, the image file, or the file and row of a table or a JSON line
    """

    names: tuple[str, ...]
    x: Tensor


def read_inputs(
    schema: DataSchema, files: Sequence[Path], *, on_bad: OnBad = "stop", notice: Notice = ignore
) -> Iterator[InputBatch]:
    """The inputs in these files in batches, in the order of the files and their rows.

    files:  image files or folders of them; CSV files whose columns have the names of the training data; JSON lines
    on_bad: "stop" at the first unreadable image or row, or "skip" it and report the number with `notice`
    """
    for path in files:
        if not path.exists():
            raise InputError(f"{path}: there is no such file")
    bad = BadRows(on_bad)
    if schema.image_size is not None and schema.dtype == "uint8":
        yield from _images(schema, files, bad)
    elif schema.table is not None:
        yield from _rows(files, bad, lambda path: _table(schema.table, path, bad))  # type: ignore[arg-type]
    elif schema.text is not None:
        yield from _rows(files, bad, lambda path: _texts(schema.text, path, bad))  # type: ignore[arg-type]
    else:
        raise InputError(
            "the model was trained on arrays of Python, and how files become such arrays is not known; "
            "pass the arrays to the model in Python"
        )
    report_skipped("inputs", bad.found, notice)


def _images(schema: DataSchema, files: Sequence[Path], bad: BadRows) -> Iterator[InputBatch]:
    assert schema.input_shape is not None
    assert schema.image_size is not None
    assert schema.mean is not None
    assert schema.std is not None
    scale = scale_and_shift(schema.mean, schema.std)
    waiting = _image_files(files)
    while paths := tuple(islice(waiting, BATCH)):
        numbers = np.arange(len(paths))
        for x, kept in image_folders.decode(paths, numbers, schema.image_size, bad, ignore, str):
            images = torch.from_numpy(x)
            if schema.input_shape[0] == 1:
                images = images[:, :1]
            yield InputBatch(tuple(str(paths[number]) for number in kept), normalised(images, *scale))


def _image_files(files: Sequence[Path]) -> Iterator[Path]:
    for path in files:
        if not path.is_dir():
            yield path
            continue
        found = sorted(part for part in path.rglob("*") if part.suffix.lower() in image_folders.SUFFIXES)
        if not found:
            raise InputError(f"{path}: the folder contains no images")
        yield from found


def _rows(
    files: Sequence[Path], bad: BadRows, read: Callable[[Path], tuple[list[str], np.ndarray]]
) -> Iterator[InputBatch]:
    for path in files:
        names, x = read(path)
        for at in range(0, len(names), BATCH):
            yield InputBatch(tuple(names[at : at + BATCH]), torch.from_numpy(x[at : at + BATCH]))


def _table(encoding: TableEncoding, path: Path, bad: BadRows) -> tuple[list[str], np.ndarray]:
    """Columns are found by name; other columns, such as the label, are not used."""
    wanted = [column.name for column in encoding.columns]
    if path.suffix.lower() == ".jsonl":
        items = jsonl.read(path, str(path), [], bad)
        numbered = [(row + 1, [_cell(item.get(name)) for name in wanted]) for row, item in items]
    else:
        table = csv_table.read(path, str(path), bad)
        indices = [csv_table.column_index(table, name, str(path)) for name in wanted]
        numbered = [(row, [cells[index] for index in indices]) for row, cells in table.rows]
    names, wrong = [f"{path}: row {row}" for row, _ in numbered], BadRows(bad.policy)
    if not names:
        return [], np.empty((0, 0), np.float32)
    x = table_rows.encode(encoding, table_rows.values(encoding.columns, [cells for _, cells in numbered], names, wrong))
    bad.found += wrong.found
    # Without a missing value in training, a missing value is 0, the centre of a standardised input.
    x = np.where(np.isnan(x), np.array(encoding.fill or 0, np.float32), x)
    kept = wrong.good_rows(len(x))
    return [names[row] for row in kept], x[kept]


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def _texts(encoding: TextEncoding, path: Path, bad: BadRows) -> tuple[list[str], np.ndarray]:
    """The field `column` of each JSON line: a text, or a list of two texts for a model of pairs."""
    items = jsonl.read(path, str(path), [encoding.column], bad)
    parts = [text_domains.text_parts(item[encoding.column]) for _, item in items]
    names = [f"{path}: row {row + 1}" for row, _ in items]
    encode = text_domains.make_encoder(encoding)
    return names, encode(parts) if parts else np.empty((0, encoding.length), np.int64)
