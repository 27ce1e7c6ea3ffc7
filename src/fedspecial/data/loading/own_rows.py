"""Domains from labelled rows of the user's own files: CSV tables and JSON lines of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspecial.data.formats import csv_table, jsonl
from fedspecial.data.loading import table_rows
from fedspecial.data.loading.bad_rows import BadRows, report_skipped
from fedspecial.data.loading.request import LoadRequest
from fedspecial.data.loading.text_domains import text_parts
from fedspecial.data.schema import TableEncoding, TextEncoding
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark


@dataclass(frozen=True)
class LabelledRows:
    """The rows of all domains together, as one list per property.

    positions: file and row, for messages
    labels:    one text per column of targets
    content:   the cells of a CSV row that are features, or the text of a JSON line (two for a pair)
    """

    positions: list[str]
    domains: list[str]
    labels: list[tuple[str, ...]]
    sites: list[str]
    content: list[Any]

    def take(self, kept: Sequence[int]) -> LabelledRows:
        parts: tuple[list[Any], ...] = (self.positions, self.domains, self.labels, self.sites, self.content)
        return LabelledRows(*([part[row] for row in kept] for part in parts))


def read_json(request: LoadRequest, files: Sequence[Path]) -> LabelledRows:
    options = request.options
    domain, text, site = (str(options[key] or "") for key in ("domain_column", "text_column", "site_column"))
    targets = target_columns(request)
    rows = LabelledRows([], [], [], [], [])
    for path in files:
        bad, name = BadRows(request.on_bad), request.display_name(path)
        for number, item in jsonl.read(path, name, [domain, *targets, text, *([site] if site else [])], bad):
            rows.positions.append(f"{name}: row {number + 1}")
            rows.domains.append(str(item[domain]))
            rows.labels.append(tuple(str(item[column]) for column in targets))
            rows.sites.append(str(item[site]) if site else "")
            rows.content.append(text_parts(item[text]))
        report_skipped(name, bad.found, request.notice)
    return rows


def read_csv(request: LoadRequest, files: Sequence[Path]) -> tuple[list[str], LabelledRows]:
    """The names of the feature columns, and the rows with the cells of these columns."""
    options = request.options
    rows = LabelledRows([], [], [], [], [])
    header: list[str] = []
    targets = target_columns(request)
    roles = [
        (str(options["domain_column"]), "domain_column"),
        *([(str(options["site_column"]), "site_column")] if options["site_column"] else []),
        *((target, "label_column") for target in targets),
    ]
    named = [column for column, _ in roles]
    for path in files:
        bad, name = BadRows(request.on_bad), request.display_name(path)
        table = csv_table.read(path, name, bad)
        if header and table.header != header:
            raise InputError(f"{name}: row 1: its columns differ from those of the other files")
        header = table.header
        if repeated := sorted({column for column in header if header.count(column) > 1}):
            raise InputError(f"{name}: row 1: the column '{repeated[0]}' occurs twice; give each column its own name")
        if table.delimiter != ",":
            request.notice(f"{name}: columns separated by {csv_table.DELIMITERS[table.delimiter]}")
        domain, *others = (csv_table.column_index(table, column, name, setting) for column, setting in roles)
        site, labels = (others[0], others[1:]) if options["site_column"] else (None, others)
        features = _feature_columns(request, table, named, name)
        for number, cells in table.rows:
            rows.positions.append(f"{name}: row {number}")
            rows.domains.append(cells[domain])
            rows.labels.append(tuple(cells[index] for index in labels))
            rows.sites.append("" if site is None else cells[site])
            rows.content.append([cells[index] for index in features])
        report_skipped(name, bad.found, request.notice)
    return [header[index] for index in features], rows


def target_columns(request: LoadRequest) -> list[str]:
    """The columns of the targets: one with the class, or one for each value or label."""
    given = request.options["label_column"]
    columns = [part.strip() for part in str(given).split(",")] if isinstance(given, str) else list(map(str, given))
    if request.targets == "masks":
        raise InputError("objective=segmentation: tables and texts have no masks; give images and masks from Python")
    if len(columns) > 1 and request.targets not in ("values", "indicators"):
        raise InputError(f"label_column={given}: several columns of targets need objective=regression or multilabel")
    return columns


def _feature_columns(request: LoadRequest, table: csv_table.CsvTable, named: Sequence[str], name: str) -> list[int]:
    """All columns that are not named otherwise; those of the schema, by name, if the data is for a trained model."""
    if request.schema is not None and request.schema.table is not None:
        return [csv_table.column_index(table, column.name, name) for column in request.schema.table.columns]
    features = [index for index, column in enumerate(table.header) if column not in named]
    if not features:
        raise InputError(f"{request.root}: there are no feature columns besides {', '.join(named)}")
    return features


def table_benchmark(request: LoadRequest, names: Sequence[str], rows: LabelledRows) -> Benchmark:
    """Columns standardised with the mean and deviation of the first domain's training rows.

    Later domains are not known when training begins. A federation can compute both numbers from sums and sums of
    squares, without sharing rows.
    """
    known = request.schema.table if request.schema is not None else None
    columns = known.columns if known else table_rows.find_columns(names, rows.content)
    bad = BadRows(request.on_bad)
    x = table_rows.values(columns, rows.content, rows.positions, bad)
    report_skipped("table", bad.found, request.notice)
    kept = bad.good_rows(len(x))
    x, rows = x[kept], rows.take(kept.tolist())
    indicators = known.indicators if known else tuple(np.flatnonzero(np.isnan(x).any(axis=0)).tolist())
    found = benchmark(request, rows, table_rows.with_indicators(x, indicators), None)
    mean, std = (known.mean, known.std) if known else table_rows.mean_and_std(found.domains[0].train.x.numpy())
    return table_rows.standardise(found, TableEncoding(columns, indicators, mean, std, known.fill if known else None))


def benchmark(request: LoadRequest, rows: LabelledRows, x: np.ndarray, encoding: TextEncoding | None) -> Benchmark:
    """The rows by domain, each split 70/30; `encoding` of texts, None for tables."""
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.loading.splits import domain_split

    if not rows.labels:
        raise InputError(f"{request.root}: there are no usable rows")
    for position, domain, label in zip(rows.positions, rows.domains, rows.labels, strict=True):
        if not domain or not all(label):
            raise InputError(f"{position}: the {'label' if domain else 'domain'} is empty")
    known = sorted(set(rows.domains))
    for name in request.domains:
        if name not in known:
            raise InputError(f"domains={name}: there are no such rows in {request.root}{did_you_mean(name, known)}")
    classes, labels = _targets(request, rows)
    site_names = sorted(set(rows.sites))
    sites = np.array([site_names.index(site) for site in rows.sites]) if request.options["site_column"] else None
    found = []
    for name in request.domains or tuple(known):
        selected = np.array([domain == name for domain in rows.domains])
        row_sites = sites[selected] if sites is not None else None
        found.append(domain_split(name, x[selected], labels[selected], request, row_sites, len(site_names)))
    kind: Any = "text" if encoding else "table"
    kinds: Any = request.targets if labels.dtype == np.float32 else "classes"
    return Benchmark("folders", tuple(found), tuple(classes), kind=kind, encoding=encoding, targets=kinds)


def _targets(request: LoadRequest, rows: LabelledRows) -> tuple[list[str], np.ndarray]:
    """The names of the model's outputs, and the targets: class numbers, or numbers as they are in the columns."""
    if request.targets not in ("values", "indicators"):
        classes = _sorted_labels({label for (label,) in rows.labels})
        numbers = {label: number for number, label in enumerate(classes)}
        return classes, np.array([numbers[label] for (label,) in rows.labels])
    names = target_columns(request)
    values = np.empty((len(rows.labels), len(names)), np.float32)
    for row, label in enumerate(rows.labels):
        for column, cell in enumerate(label):
            if not csv_table.is_number(cell):
                place = f"{rows.positions[row]}: column '{names[column]}'"
                raise InputError(f"{place}: {cell!r} is not a number, which the objective of the run needs")
            values[row, column] = float(cell)
    return names, values[:, 0] if request.targets == "values" and len(names) == 1 else values


def _sorted_labels(labels: set[str]) -> list[str]:
    return sorted(labels, key=lambda label: (0, float(label), label) if csv_table.is_number(label) else (1, 0.0, label))
