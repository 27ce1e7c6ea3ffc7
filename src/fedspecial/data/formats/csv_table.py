"""CSV files: rows of cells, and which cells are numbers or missing."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedspecial.data.formats.text_lines import lines
from fedspecial.data.loading.bad_rows import BadRows
from fedspecial.errors import InputError, did_you_mean

MISSING = {"", "?", "na", "nan", "null"}
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
MAX_CATEGORIES = 50
"""A text column with more distinct values than this is refused, since each value becomes a feature."""


@dataclass(frozen=True)
class CsvTable:
    """The column names, and each row as its number in the file (from 1, the header included) and its cells as text."""

    header: list[str]
    rows: list[tuple[int, list[str]]]
    delimiter: str = ","


def read(path: Path, display_name: str, bad: BadRows, header: Sequence[str] = ()) -> CsvTable:
    """Rows of cells; `header` gives the column names of a file that has no header line."""
    good = dict(lines(path, display_name, bad, header=not header))
    numbers = list(good)
    rows: list[tuple[int, list[str]]] = []
    delimiter = find_delimiter(list(good.values())[:20], display_name)
    try:
        for cells in (reader := csv.reader(io.StringIO("\n".join(good.values())), delimiter=delimiter)):
            rows.append((numbers[reader.line_num - 1] + 1, [cell.strip() for cell in cells]))
    except csv.Error as error:
        raise InputError(f"{display_name}: not a CSV file ({error})") from None
    if not rows:
        raise InputError(f"{display_name}: the file is empty")
    names = list(header) or rows[0][1]
    if not header or not is_number(rows[0][1][0]):
        rows = rows[1:]
    kept = []
    for number, cells in rows:
        if len(cells) != len(names):
            bad.add(number, f"{display_name}: row {number}: {len(cells)} columns, expected {len(names)}")
        else:
            kept.append((number, cells))
    return CsvTable(names, kept, delimiter)


def find_delimiter(first_lines: Sequence[str], display_name: str) -> str:
    """The character that separates the columns: it divides the header, and the first rows into as many cells."""
    if not first_lines:
        return ","
    found = {}
    for delimiter in DELIMITERS:
        widths = {len(cells) for cells in csv.reader(io.StringIO("\n".join(first_lines)), delimiter=delimiter)}
        columns = len(next(csv.reader([first_lines[0]], delimiter=delimiter)))
        if columns > 1:
            found[delimiter] = (columns, len(widths) == 1)
    regular = [delimiter for delimiter, (_, same) in found.items() if same]
    if len(regular) > 1:
        names = " and ".join(DELIMITERS[delimiter] for delimiter in regular)
        raise InputError(f"{display_name}: row 1: columns could be separated by {names}; put quotes around the others")
    return regular[0] if regular else max(found, key=lambda delimiter: found[delimiter][0], default=",")


def column_index(table: CsvTable, name: str, display_name: str, setting: str | None = None) -> int:
    """Where a column is; `setting` is the one that names it, for the message if it is absent."""
    if name not in table.header:
        hint = did_you_mean(name, table.header)
        remedy = f"; say which one it is with {setting}=…" if setting else ""
        raise InputError(f"{display_name}: row 1: no column '{name}' among {', '.join(table.header)}{hint}{remedy}")
    return table.header.index(name)


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def parse_number(cell: str) -> float:
    """NaN for a missing value; raises ValueError if the cell is neither a number nor missing."""
    value = float("nan") if cell.lower() in MISSING else float(cell)
    if value in (float("inf"), float("-inf")):
        raise ValueError(cell)
    return value
