"""A user's own data without code: a tree of images, CSV files with a domain column, JSON lines of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspecial.data.benchmarks import corpora, tables, trees
from fedspecial.data.formats import text
from fedspecial.data.formats.common import Bad, Request, tell_skipped
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

OPTIONS: Mapping[str, Any] = {
    "domain_column": "domain",
    "label_column": "label",
    "text_column": "text",
    "site_column": None,
    **corpora.OPTIONS,
}


@dataclass(frozen=True)
class Rows:
    """Rows of all domains together: where each stands, its domain, label, site and content."""

    where: list[str]
    domains: list[str]
    labels: list[str]
    sites: list[str]
    content: list[Any]


def kind_of(root: Path) -> str:
    """ "csv", "jsonl" or "images", by what the folder (or the one file) is."""
    for kind in ("csv", "jsonl"):
        if files_of(root, kind):
            return kind
    if not root.is_dir():
        raise InputError(f"{root}: neither a folder of images nor a .csv or .jsonl file")
    return "images"


def files_of(root: Path, kind: str) -> list[Path]:
    if root.is_file():
        return [root] if root.suffix.lower() == f".{kind}" else []
    return sorted(path for path in root.glob(f"*.{kind}") if path.is_file())


def needs(request: Request, domain: str) -> list[Path]:
    return [request.root]


def load(request: Request, classes: tuple[str, ...]) -> Benchmark:
    kind = kind_of(request.root)
    if kind == "images":
        return trees.load_own(request if request.image_size else _with_size(request))
    return _load_csv(request) if kind == "csv" else _load_json(request)


def _with_size(request: Request) -> Request:
    return replace(request, image_size=64)


def _load_json(request: Request) -> Benchmark:
    encode, rows = corpora.encoder(request.options), _json_rows(request)
    x = encode(text.Texts(tuple(rows.content), np.zeros(0, np.int64)))
    return _benchmark(request, rows, x, "text")


def texts(request: Request, domain: str, classes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """One text of each class, for people to look at."""
    rows = _json_rows(request)
    first = {label: row for row, label in enumerate(rows.labels) if rows.domains[row] == domain}
    return [rows.content[first[label]] for label in classes]


def _json_rows(request: Request) -> Rows:
    options = request.options
    fields = [str(options[name]) for name in ("domain_column", "label_column", "text_column")]
    site = options["site_column"]
    rows = Rows([], [], [], [], [])
    for path in files_of(request.root, "jsonl"):
        bad, shown = Bad(request.on_bad), _shown(request, path)
        for number, item in text.read_json(path, shown, [*fields, *([site] if site else [])], bad):
            rows.where.append(f"{shown}: row {number + 1}")
            rows.domains.append(str(item[fields[0]]))
            rows.labels.append(str(item[fields[1]]))
            rows.sites.append(str(item[site]) if site else "")
            rows.content.append((str(item[fields[2]]),))
        tell_skipped(shown, bad.found, request.notice)
    return rows


def _load_csv(request: Request) -> Benchmark:
    options = request.options
    rows = Rows([], [], [], [], [])
    header: list[str] = []
    for path in files_of(request.root, "csv"):
        bad, shown = Bad(request.on_bad), _shown(request, path)
        table = tables.read_csv(path, shown, bad)
        if header and table.header != header:
            raise InputError(f"{shown}: row 1: its columns differ from those of the other files")
        header = table.header
        wanted = [tables.column(table, str(options[name]), shown) for name in ("domain_column", "label_column")]
        site = tables.column(table, str(options["site_column"]), shown) if options["site_column"] else None
        for number, cells in table.rows:
            rows.where.append(f"{shown}: row {number}")
            rows.domains.append(cells[wanted[0]])
            rows.labels.append(cells[wanted[1]])
            rows.sites.append(cells[site] if site is not None else "")
            rows.content.append(cells)
        tell_skipped(shown, bad.found, request.notice)
    special = {options["domain_column"], options["label_column"], options["site_column"]}
    features = [index for index, name in enumerate(header) if name not in special]
    if not features:
        raise InputError(f"{request.root}: no columns besides {', '.join(str(name) for name in special if name)}")
    rows, x = _features(request, rows, header, features)
    return _benchmark(request, rows, x, "table")


def _features(request: Request, rows: Rows, header: list[str], features: list[int]) -> tuple[Rows, np.ndarray]:
    """Numbers as they are; a column in which nothing is a number becomes one 0/1 column per value."""
    bad, blocks = Bad(request.on_bad), []
    for index in features:
        cells = [content[index] for content in rows.content]
        present = sorted({cell for cell in cells if cell.lower() not in tables.MISSING})
        if present and not any(tables.is_number(cell) for cell in present):
            if len(present) > tables.MAX_CATEGORIES:
                raise InputError(f"column '{header[index]}': {len(present)} words, at most {tables.MAX_CATEGORIES}")
            codes = np.array([present.index(cell) if cell in present else -1 for cell in cells])
            block = (codes[:, None] == np.arange(len(present))).astype(np.float64)
            block[codes < 0] = np.nan
        else:
            block = np.full((len(cells), 1), np.nan)
            for row, cell in enumerate(cells):
                try:
                    block[row] = tables.number(cell)
                except ValueError:
                    bad.add(row, f"{rows.where[row]}: column '{header[index]}': {cell!r} is not a number")
        blocks.append(block)
    x = np.concatenate(blocks, axis=1)
    tell_skipped("table", bad.found, request.notice)
    kept = bad.keep(len(x))
    x = x[kept]
    picked = [[part[row] for row in kept] for part in (rows.where, rows.domains, rows.labels, rows.sites, rows.content)]
    return Rows(*picked), tables.with_indicators(x, np.flatnonzero(np.isnan(x).any(axis=0)).tolist())


def _benchmark(request: Request, rows: Rows, x: np.ndarray, kind: str) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.formats.assemble import domain_split

    if not rows.labels:
        raise InputError(f"{request.root}: it has no usable rows")
    for where, domain, label in zip(rows.where, rows.domains, rows.labels, strict=True):
        if not domain or not label:
            raise InputError(f"{where}: the {'label' if domain else 'domain'} is empty")
    known, classes = sorted(set(rows.domains)), _in_order(set(rows.labels))
    for name in request.domains:
        if name not in known:
            raise InputError(f"domains: no rows of '{name}' in {request.root}{did_you_mean(name, known)}")
    labels = np.array([classes.index(label) for label in rows.labels])
    owners = sorted(set(rows.sites))
    sites = np.array([owners.index(site) for site in rows.sites]) if request.options["site_column"] else None
    found = []
    for name in request.domains or tuple(known):
        mine = np.array([domain == name for domain in rows.domains])
        owned = sites[mine] if sites is not None else None
        found.append(domain_split(name, x[mine], labels[mine], request, owned, len(owners)))
    benchmark = Benchmark("folders", tuple(found), tuple(classes), kind="table" if kind == "table" else "text")
    return _scaled(benchmark) if kind == "table" else benchmark


def _in_order(labels: set[str]) -> list[str]:
    return sorted(labels, key=lambda label: (0, float(label), label) if tables.is_number(label) else (1, 0.0, label))


def _scaled(benchmark: Benchmark) -> Benchmark:
    """Columns standardised by the first domain's training rows, which are known before anything else is seen.

    It needs only sums and sums of squares, which a federation can add up without showing rows.
    """
    import torch

    from fedspecial.data.benchmark import Samples

    first = benchmark.domains[0].train.x.numpy()
    known = np.maximum((~np.isnan(first)).sum(axis=0), 1)
    mean = np.nan_to_num(first).sum(axis=0) / known
    std = np.sqrt(np.nan_to_num((first - mean) ** 2).sum(axis=0) / known)
    # A 0/1 column (an indicator, a word) stays as it is: its spread here says nothing of the next domain.
    binary = np.array([set(np.unique(values[~np.isnan(values)])) <= {0.0, 1.0} for values in first.T])
    mean, std = np.where(binary, 0, mean), np.where(binary | (std == 0), 1, std)

    def scale(samples: Samples) -> Samples:
        return Samples((samples.x - torch.from_numpy(mean).float()) / torch.from_numpy(std).float(), samples.y)

    domains = tuple(replace(d, train=scale(d.train), test=scale(d.test)) for d in benchmark.domains)
    return replace(benchmark, domains=domains)


def _shown(request: Request, path: Path) -> str:
    return path.name if request.root == path else request.shown(path)
