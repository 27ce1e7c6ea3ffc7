"""Heart disease in four hospitals (UCI): 13 features per patient, healthy or ill.

A missing value is NaN here; `fedspecial.data.impute` fills it once the client that owns the row is known. Each
feature that can be missing has an indicator column, which is 1 where the value was missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.entry import Entry
from fedspecial.data.formats import csv_table
from fedspecial.data.loading import table_rows
from fedspecial.data.loading.bad_rows import BadRows, report_skipped
from fedspecial.data.loading.request import LoadRequest
from fedspecial.data.schema import Column, TableEncoding
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

CLASSES = ("healthy", "ill")
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
"""Centre and scale of each feature: typical values of adult cardiology, not statistics of these patients, so that
standardising reveals nothing about a hospital before its task begins."""
IMPOSSIBLE_ZERO = ("trestbps", "chol")
"""A blood pressure or cholesterol of 0 is impossible; in the published files it means 'not measured'."""
ALWAYS_KNOWN = ("age", "sex", "cp")
_MEASURED = [number for number, name in enumerate(FEATURES) if name not in ALWAYS_KNOWN]
ENCODING = TableEncoding(
    columns=tuple(Column(name, zero_is_missing=name in IMPOSSIBLE_ZERO) for name in FEATURES),
    indicators=tuple(_MEASURED),
    mean=(*(centre for centre, _ in FEATURES.values()), *(0.0 for _ in _MEASURED)),
    std=(*(scale for _, scale in FEATURES.values()), *(1.0 for _ in _MEASURED)),
)


def files(request: LoadRequest, domain: str) -> list[Path]:
    return [request.root / "HeartDisease" / f"processed.{HOSPITALS[domain]}.data"]


def count(request: LoadRequest, domain: str) -> tuple[int, int | None]:
    path = files(request, domain)[0]
    return len(csv_table.read(path, path.name, BadRows("skip"), (*FEATURES, "num")).rows), None


def load(request: LoadRequest) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.loading.splits import domain_split

    found = []
    for domain in request.domains:
        path = files(request, domain)[0]
        if not path.is_file():
            raise request.missing_file(path, domain)
        bad = BadRows(request.on_bad)
        x, y = read_hospital(path, request.display_name(path), bad)
        report_skipped(f"domain '{domain}'", bad.found, request.notice)
        request.progress(1, 1)
        found.append(domain_split(domain, x, y, request))
    return Benchmark("heart", tuple(found), CLASSES, kind="table", licence="CC BY 4.0", encoding=ENCODING)


def read_hospital(path: Path, display_name: str, bad: BadRows) -> tuple[np.ndarray, np.ndarray]:
    """13 standardised features and 10 indicators; label 1 for any degree of disease (1…4 in the files)."""
    table = csv_table.read(path, display_name, bad, (*FEATURES, "num"))
    rows, positions, labels = [], [], []
    for row, cells in table.rows:
        grade = cells[-1].strip("'\"")
        label = {"not_present": "0", "present": "1"}.get(grade, grade)
        if label not in {"0", "1", "2", "3", "4"}:
            bad.add(row, f"{display_name}: row {row}: label {grade!r} is not one of 0…4")
            continue
        rows.append(cells[:-1])
        positions.append(f"{display_name}: row {row}")
        labels.append(int(label != "0"))
    wrong = BadRows(bad.policy)
    x = table_rows.values(ENCODING.columns, rows, positions, wrong) if rows else np.empty((0, 0))
    bad.found += wrong.found
    kept = wrong.good_rows(len(x))
    if len(kept) == 0:
        raise InputError(f"{display_name}: has no usable rows")
    return table_rows.encode(ENCODING, x[kept]), np.array(labels, np.int64)[kept]


ENTRY = Entry(
    name="heart",
    title="Heart disease in four hospitals: 13 features, healthy or ill",
    kind="table",
    domains=tuple(HOSPITALS),
    classes=CLASSES,
    num_classes=2,
    licence="CC BY 4.0",
    load=load,
    files=files,
    count=count,
    features=(*FEATURES, *(f"{name}?" for name in FEATURES if name not in ALWAYS_KNOWN)),
    sources={"": "https://archive.ics.uci.edu/dataset/45/heart+disease (processed.*.data)"},
    sizes={
        "cleveland": (303, None),
        "hungary": (294, None),
        "switzerland": (123, None),
        "va": (200, None),
    },
)
