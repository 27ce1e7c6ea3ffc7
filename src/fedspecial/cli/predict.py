"""fedspecial predict: the classes of new files, as a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedspecial.cli.console import one_line_errors, out
from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.runs import directory

if TYPE_CHECKING:
    from fedspecial.runs.load import TrainedModel

Row = tuple[str, str | None, dict[str, float]]
"""The name of an input, the class with the highest probability, and the value of each output."""
SHOWN_CLASSES = 6


class Format(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    files: Annotated[list[Path], typer.Argument(metavar="FILES...", help="Images, folders, CSV files or JSON lines.")],
    format: Annotated[Format, typer.Option(help="How predictions are written.")] = Format.table,
    out_file: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write to a file.")] = None,
) -> None:
    """Predict the classes of new images, rows of tables or texts with the model of a finished run.

    Example:  fedspecial predict runs/a scans/ --format csv --out predictions.csv
    """
    with one_line_errors():
        directory.settings(folder)
        if out_file is not None and format is Format.table:
            raise InputError(f"--out {out_file}: choose --format csv or --format json for a file")
        from fedspecial.runs.load import load

        trained = load(folder)
        rows = _rows(trained, files)
        if format is Format.table:
            out.print(_table(rows, list(rows[0][2]) if rows else []))
            return
        text = _csv(rows) if format is Format.csv else json.dumps([_record(row) for row in rows], indent=1) + "\n"
        _write(text, out_file)


def _rows(trained: TrainedModel, files: Sequence[Path]) -> list[Row]:
    found: list[Row] = []
    for part in trained.predict_files(files):
        for name, values in zip(part.names, part.values.tolist(), strict=True):
            outputs = values if isinstance(values, list) else [values]
            classes = trained.classes or tuple(f"output {number}" for number in range(1, len(outputs) + 1))
            named = dict(zip(classes, outputs, strict=False))
            best = max(named, key=lambda label: named[label]) if trained.objective == "classification" else None
            found.append((name, best, named))
    return found


def _table(rows: Iterable[Row], classes: Sequence[str]) -> Table:
    """All probabilities of a few classes, or only the highest one of many."""
    table = Table()
    table.add_column("input")
    rows = list(rows)
    classified = any(best is not None for _, best, _ in rows)
    if classified:
        table.add_column("class")
    every = len(classes) <= SHOWN_CLASSES
    for name in classes if every else ["probability"]:
        table.add_column(escape(name), justify="right")
    for name, best, values in rows:
        cells = values.values() if every or best is None else [values[best]]
        label = [escape(best or "")] if classified else []
        table.add_row(escape(name), *label, *(f"{value:.3f}" for value in cells))
    return table


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["input", "class", *(rows[0][2] if rows else ())])
    writer.writerows([name, best or "", *(f"{value:.6g}" for value in values.values())] for name, best, values in rows)
    return text.getvalue()


def _record(row: Row) -> dict[str, object]:
    name, best, values = row
    return {"input": name, "class": best, "values": values}


def _write(text: str, path: Path | None) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise InputError(f"--out {path}: it cannot be written ({error.strerror})") from None
