"""Tables: CSV files with a label column, and heart disease in four hospitals.

A missing value is NaN here; `fedspecial.data.impute` fills it once it is known which client holds the row.
For each column in which values may be missing there is an indicator column, 1 where the value was missing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.formats import text
from fedspecial.data.formats.common import Bad, Request, tell_skipped
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

MISSING = {"", "?", "na", "nan", "null"}
MAX_CATEGORIES = 50

HOSPITALS = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "va": "va"}
FEATURES: dict[str, tuple[float, float]] = {
    "age": (54, 9),
    "sex": (0.5, 0.5),
    "cp": (2.5, 1),
    "trestbps": (130, 20),
    "chol": (240, 50),
    "fbs": (0.5, 0.5),
    "restecg": (1, 1),
    "thalach": (140, 25),
    "exang": (0.5, 0.5),
    "oldpeak": (1, 1),
    "slope": (2, 1),
    "ca": (1, 1),
    "thal": (5, 2),
}
"""Centre and scale of each feature: round numbers of adult cardiology, not statistics of these patients, so
nothing is learned from a hospital before its turn."""
IMPOSSIBLE_ZERO = ("trestbps", "chol")
"""No living patient has a blood pressure or cholesterol of 0: the published files mean 'not measured'."""
ALWAYS_KNOWN = ("age", "sex", "cp")


@dataclass(frozen=True)
class Table:
    """Cells as written, row numbers in the file (from 1, the header included), and the column names."""

    header: list[str]
    rows: list[tuple[int, list[str]]]


def read_csv(path: Path, shown: str, bad: Bad, header: Sequence[str] = ()) -> Table:
    """Comma-separated rows; `header` names the columns of a file that has no header of its own."""
    good = dict(text.lines(path, shown, bad))
    numbers = list(good)
    rows: list[tuple[int, list[str]]] = []
    try:
        for cells in (reader := csv.reader(io.StringIO("\n".join(good.values())))):
            rows.append((numbers[reader.line_num - 1] + 1, [cell.strip() for cell in cells]))
    except csv.Error as error:
        raise InputError(f"{shown}: not a CSV file ({error})") from None
    if not rows:
        raise InputError(f"{shown}: it is empty")
    names = list(header) or rows[0][1]
    if not header or not is_number(rows[0][1][0]):
        rows = rows[1:]
    kept = []
    for number, cells in rows:
        if len(cells) != len(names):
            bad.add(number, f"{shown}: row {number}: {len(cells)} columns, expected {len(names)}")
        else:
            kept.append((number, cells))
    return Table(names, kept)


def column(table: Table, name: str, shown: str) -> int:
    if name not in table.header:
        raise InputError(
            f"{shown}: row 1: no column '{name}' among {', '.join(table.header)}{did_you_mean(name, table.header)}"
        )
    return table.header.index(name)


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def number(cell: str) -> float:
    """NaN for a missing value; raises ValueError for what is neither a number nor missing."""
    value = float("nan") if cell.lower() in MISSING else float(cell)
    if value in (float("inf"), float("-inf")):
        raise ValueError(cell)
    return value


def with_indicators(values: np.ndarray, columns: Sequence[int]) -> np.ndarray:
    """The values, then one 0/1 column for each of those columns: was it missing?"""
    return np.concatenate([values, np.isnan(values[:, list(columns)])], axis=1).astype(np.float32)


def needs(request: Request, domain: str) -> list[Path]:
    return [request.root / "HeartDisease" / f"processed.{HOSPITALS[domain]}.data"]


def count(request: Request, domain: str) -> tuple[int, int | None]:
    path = needs(request, domain)[0]
    return len(read_csv(path, path.name, Bad("skip"), (*FEATURES, "num")).rows), None


def load(request: Request, classes: tuple[str, ...]) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.formats.assemble import domain_split

    found = []
    for domain in request.domains:
        path = needs(request, domain)[0]
        if not path.is_file():
            raise InputError(f"{request.shown(path)}: not in the data folder {request.root}{request.place(domain)}")
        bad = Bad(request.on_bad)
        x, y = read_hospital(path, request.shown(path), bad)
        tell_skipped(f"domain '{domain}'", bad.found, request.notice)
        request.tick(1, 1)
        found.append(domain_split(domain, x, y, request))
    return Benchmark("heart", tuple(found), classes, kind="table", licence="CC BY 4.0")


def read_hospital(path: Path, shown: str, bad: Bad) -> tuple[np.ndarray, np.ndarray]:
    """13 standardised features and 10 indicators; label 1 for any degree of disease (1…4 in the files)."""
    table = read_csv(path, shown, bad, (*FEATURES, "num"))
    centre, scale = np.array(list(FEATURES.values())).T
    rows, labels = [], []
    for row, cells in table.rows:
        try:
            values = [number(cell) for cell in cells[:-1]]
        except ValueError as error:
            bad.add(row, f"{shown}: row {row}: not a number: {error}")
            continue
        grade = cells[-1].strip("'\"")
        label = {"not_present": "0", "present": "1"}.get(grade, grade)
        if label not in {"0", "1", "2", "3", "4"}:
            bad.add(row, f"{shown}: row {row}: label {grade!r} is not one of 0…4")
            continue
        rows.append(values)
        labels.append(int(label != "0"))
    if not rows:
        raise InputError(f"{shown}: it has no usable rows")
    x = np.array(rows)
    names = list(FEATURES)
    for name in IMPOSSIBLE_ZERO:
        x[x[:, names.index(name)] == 0, names.index(name)] = np.nan
    wanted = [index for index, name in enumerate(names) if name not in ALWAYS_KNOWN]
    return with_indicators((x - centre) / scale, wanted), np.array(labels, np.int64)
