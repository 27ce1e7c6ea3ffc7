"""From the cells of a table to inputs: numbers, one 0/1 input per category, indicators of missing values.

A missing value is NaN here. `fedspecial.data.impute` fills it once the client that owns the row is known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.formats.csv_table import MAX_CATEGORIES, MISSING, is_number, parse_number
from fedspecial.data.loading.bad_rows import BadRows
from fedspecial.data.schema import Column, TableEncoding
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

Cells = Sequence[Sequence[str]]
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
LARGEST = float(np.finfo(np.float32).max)
"""Inputs of a model are float32. The squares of larger numbers would make the deviation of their column infinite."""


def find_columns(names: Sequence[str], cells: Cells) -> tuple[Column, ...]:
    """A column without any number has categories: the distinct texts in it."""
    found = []
    for index, name in enumerate(names):
        present = sorted({row[index] for row in cells if not _missing(row[index])})
        if not present or any(is_number(cell) for cell in present):
            found.append(Column(name))
            continue
        if commas := [cell for cell in present if DECIMAL_COMMA.fullmatch(cell)]:
            raise InputError(f"column '{name}': {commas[0]!r} has a decimal comma; write numbers with a point")
        if len(present) > MAX_CATEGORIES:
            raise InputError(
                f"column '{name}': {len(present)} distinct texts, at most {MAX_CATEGORIES} are allowed; "
                "leave the column out of the file, or group its values"
            )
        found.append(Column(name, tuple(present)))
    return tuple(found)


def values(columns: Sequence[Column], cells: Cells, positions: Sequence[str], bad: BadRows) -> np.ndarray:
    """One float64 row per row of cells, in the order of the columns; NaN where a value is missing or bad."""
    blocks = [
        _category_block(column, index, cells, positions, bad)
        if column.categories is not None
        else _number_block(column, index, cells, positions, bad)
        for index, column in enumerate(columns)
    ]
    return np.concatenate(blocks, axis=1)


def _category_block(column: Column, index: int, cells: Cells, positions: Sequence[str], bad: BadRows) -> np.ndarray:
    known = {name: number for number, name in enumerate(column.categories or ())}
    block = np.zeros((len(cells), len(known)))
    for row, texts in enumerate(cells):
        cell = texts[index]
        if cell in known:
            block[row, known[cell]] = 1
            continue
        block[row] = np.nan
        if not _missing(cell):
            bad.add(row, f"{positions[row]}: column '{column.name}': {cell!r} is not one of {', '.join(known)}")
    return block


def _number_block(column: Column, index: int, cells: Cells, positions: Sequence[str], bad: BadRows) -> np.ndarray:
    block = np.full((len(cells), 1), np.nan)
    for row, texts in enumerate(cells):
        try:
            block[row] = parse_number(texts[index])
        except ValueError:
            bad.add(row, f"{positions[row]}: column '{column.name}': {texts[index]!r} is not a number")
        if abs(block[row, 0]) > LARGEST:
            bad.add(row, f"{positions[row]}: column '{column.name}': {texts[index]!r} is too large, over {LARGEST:.1e}")
    if column.zero_is_missing:
        block[block == 0] = np.nan
    return block


def _missing(cell: str) -> bool:
    return cell.lower() in MISSING


def with_indicators(x: np.ndarray, indicators: Sequence[int]) -> np.ndarray:
    """The values, then one indicator per input in `indicators`: 1 where the value is missing, else 0."""
    return np.concatenate([x, np.isnan(x[:, list(indicators)])], axis=1)


def encode(encoding: TableEncoding, x: np.ndarray) -> np.ndarray:
    """Values as inputs of the model, float32, still with NaN where a value is missing."""
    return standardised(with_indicators(x, encoding.indicators), encoding)


def standardised(x: np.ndarray, encoding: TableEncoding) -> np.ndarray:
    scaled: np.ndarray = (x - np.array(encoding.mean)) / np.array(encoding.std)
    if encoding.limit is not None:
        scaled = scaled.clip(-encoding.limit, encoding.limit)
    return scaled.astype(np.float32)


def mean_and_std(first: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of every column, from the training rows of the first domain: later ones are not known when training begins."""
    known = np.maximum((~np.isnan(first)).sum(axis=0), 1)
    mean = np.nan_to_num(first).sum(axis=0) / known
    std = np.sqrt(np.nan_to_num((first - mean) ** 2).sum(axis=0) / known)
    # A 0/1 column stays as it is: its deviation in the first domain says nothing about the next domain.
    binary = np.array([set(np.unique(values[~np.isnan(values)])) <= {0.0, 1.0} for values in first.T])
    return tuple(np.where(binary, 0, mean).tolist()), tuple(np.where(binary | (std == 0), 1, std).tolist())


def standardise(found: Benchmark, encoding: TableEncoding) -> Benchmark:
    """All samples of a benchmark, standardised."""
    import torch

    from fedspecial.data.samples import Samples

    def scale(samples: Samples) -> Samples:
        return replace(samples, x=torch.from_numpy(standardised(samples.x.numpy(), encoding)))

    domains = tuple(replace(d, train=scale(d.train), test=scale(d.test)) for d in found.domains)
    return replace(found, domains=domains, encoding=encoding)
