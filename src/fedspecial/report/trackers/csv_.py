"""metrics.csv in the run directory: one row per number (step, name, value)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from fedspecial.core.files import write_atomic
from fedspecial.report.trackers import TrackedRun

HEAD = ("step", "name", "value")


class CsvFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows((step, name, value) for name, value in values.items())

    def finish(self) -> None:
        """Every row is already written."""


def start(run: TrackedRun) -> CsvFile:
    """A resumed run continues after the rows of the rounds that it keeps."""
    path = run.folder / "metrics.csv"
    rows: list[list[str]] = []
    if run.step and path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in list(csv.reader(file))[1:] if len(row) == len(HEAD) and int(row[0]) <= run.step]
    text = io.StringIO(newline="")
    csv.writer(text).writerows([HEAD, *rows])
    write_atomic(path, text.getvalue().encode())
    return CsvFile(path)
