"""The user's own data without code: a tree of images, CSV files with a domain column, or JSON lines of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedspecial.data.entry import Entry
from fedspecial.data.formats import csv_table, image_folders, jsonl
from fedspecial.data.loading import text_domains
from fedspecial.data.loading.bad_rows import BadRows, report_skipped
from fedspecial.data.loading.image_domains import MEAN, STD, image_domain
from fedspecial.data.loading.request import LoadRequest
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

IMAGE_SIZE = 64
OPTIONS: Mapping[str, Any] = {
    "domain_column": "domain",
    "label_column": "label",
    "text_column": "text",
    "site_column": None,
    **text_domains.OPTIONS,
}


@dataclass(frozen=True)
class LabelledRows:
    """The rows of all domains together, as one list per property.

    positions: file and row, for messages
    content:   the cells of a CSV row, or the text of a JSON line
    """

    positions: list[str]
    domains: list[str]
    labels: list[str]
    sites: list[str]
    content: list[Any]


def format_of(root: Path) -> Literal["csv", "jsonl", "images"]:
    """The format of the data folder, or of the one file that is given in its place."""
    if files_of(root, "csv"):
        return "csv"
    if files_of(root, "jsonl"):
        return "jsonl"
    if not root.is_dir():
        raise InputError(f"{root}: neither a folder of images nor a .csv or .jsonl file")
    return "images"


def files_of(root: Path, suffix: str) -> list[Path]:
    if root.is_file():
        return [root] if root.suffix.lower() == f".{suffix}" else []
    return sorted(path for path in root.glob(f"*.{suffix}") if path.is_file())


def files(request: LoadRequest, domain: str) -> list[Path]:
    return [request.root]


def load(request: LoadRequest) -> Benchmark:
    match format_of(request.root):
        case "images":
            return _load_images(request if request.image_size else replace(request, image_size=IMAGE_SIZE))
        case "csv":
            return _load_csv(request)
        case "jsonl":
            return _load_json(request)


def _load_images(request: LoadRequest) -> Benchmark:
    """The names of the folders are the names of the domains and classes."""
    from fedspecial.data.benchmark import Benchmark

    root = request.root
    sites = image_folders.subfolders(root) if image_folders.has_sites(root) else []
    site_folders = [root / site for site in sites] or [root]
    known = sorted({name for folder in site_folders for name in image_folders.subfolders(folder)})
    for name in request.domains:
        if name not in known:
            raise InputError(f"domains={name}: there is no such folder in {root}{did_you_mean(name, known)}")
    folders = {domain: [folder / domain for folder in site_folders] for domain in request.domains or tuple(known)}
    present = [folder for parts in folders.values() for folder in parts if folder.is_dir()]
    classes = tuple(sorted({name for folder in present for name in _class_folders(folder)}))
    domains = tuple(image_domain(request, domain, parts, classes) for domain, parts in folders.items())
    return Benchmark("folders", domains, classes, mean=MEAN, std=STD)


def _class_folders(folder: Path) -> list[str]:
    return [name for name in image_folders.subfolders(folder) if image_folders.images(folder / name)]


def _load_json(request: LoadRequest) -> Benchmark:
    encode, rows = text_domains.make_encoder(request.options), _json_rows(request)
    return _benchmark(request, rows, encode(tuple(rows.content)), "text")


def example_texts(request: LoadRequest, domain: str, classes: tuple[str, ...]) -> list[tuple[str, ...]]:
    rows = _json_rows(request)
    chosen = {label: row for row, label in enumerate(rows.labels) if rows.domains[row] == domain}
    return [rows.content[chosen[label]] for label in classes]


def _json_rows(request: LoadRequest) -> LabelledRows:
    options = request.options
    fields = [str(options[key]) for key in ("domain_column", "label_column", "text_column")]
    site = options["site_column"]
    rows = LabelledRows([], [], [], [], [])
    for path in files_of(request.root, "jsonl"):
        bad, name = BadRows(request.on_bad), request.display_name(path)
        for number, item in jsonl.read(path, name, [*fields, *([site] if site else [])], bad):
            rows.positions.append(f"{name}: row {number + 1}")
            rows.domains.append(str(item[fields[0]]))
            rows.labels.append(str(item[fields[1]]))
            rows.sites.append(str(item[site]) if site else "")
            rows.content.append((str(item[fields[2]]),))
        report_skipped(name, bad.found, request.notice)
    return rows


def _load_csv(request: LoadRequest) -> Benchmark:
    options = request.options
    rows = LabelledRows([], [], [], [], [])
    header: list[str] = []
    for path in files_of(request.root, "csv"):
        bad, name = BadRows(request.on_bad), request.display_name(path)
        table = csv_table.read(path, name, bad)
        if header and table.header != header:
            raise InputError(f"{name}: row 1: its columns differ from those of the other files")
        header = table.header
        wanted = [csv_table.column_index(table, str(options[key]), name) for key in ("domain_column", "label_column")]
        site = csv_table.column_index(table, str(options["site_column"]), name) if options["site_column"] else None
        for number, cells in table.rows:
            rows.positions.append(f"{name}: row {number}")
            rows.domains.append(cells[wanted[0]])
            rows.labels.append(cells[wanted[1]])
            rows.sites.append(cells[site] if site is not None else "")
            rows.content.append(cells)
        report_skipped(name, bad.found, request.notice)
    named = {options["domain_column"], options["label_column"], options["site_column"]}
    features = [index for index, name in enumerate(header) if name not in named]
    if not features:
        raise InputError(
            f"{request.root}: there are no feature columns besides {', '.join(str(name) for name in named if name)}"
        )
    rows, x = _features(request, rows, header, features)
    return _benchmark(request, rows, x, "table")


def _features(
    request: LoadRequest, rows: LabelledRows, header: list[str], features: list[int]
) -> tuple[LabelledRows, np.ndarray]:
    """Numbers stay as they are; a column without any number becomes one 0/1 column per distinct value."""
    bad, blocks = BadRows(request.on_bad), []
    for index in features:
        cells = [content[index] for content in rows.content]
        present = sorted({cell for cell in cells if cell.lower() not in csv_table.MISSING})
        if present and not any(csv_table.is_number(cell) for cell in present):
            if len(present) > csv_table.MAX_CATEGORIES:
                limit = csv_table.MAX_CATEGORIES
                raise InputError(
                    f"column '{header[index]}': {len(present)} distinct texts, at most {limit} are allowed"
                )
            codes = np.array([present.index(cell) if cell in present else -1 for cell in cells])
            block = (codes[:, None] == np.arange(len(present))).astype(np.float64)
            block[codes < 0] = np.nan
        else:
            block = np.full((len(cells), 1), np.nan)
            for row, cell in enumerate(cells):
                try:
                    block[row] = csv_table.parse_number(cell)
                except ValueError:
                    bad.add(row, f"{rows.positions[row]}: column '{header[index]}': {cell!r} is not a number")
        blocks.append(block)
    x = np.concatenate(blocks, axis=1)
    report_skipped("table", bad.found, request.notice)
    kept = bad.good_rows(len(x))
    x = x[kept]
    picked = [
        [part[row] for row in kept] for part in (rows.positions, rows.domains, rows.labels, rows.sites, rows.content)
    ]
    return LabelledRows(*picked), csv_table.with_indicators(x, np.flatnonzero(np.isnan(x).any(axis=0)).tolist())


def _benchmark(request: LoadRequest, rows: LabelledRows, x: np.ndarray, kind: Literal["table", "text"]) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.loading.splits import domain_split

    if not rows.labels:
        raise InputError(f"{request.root}: there are no usable rows")
    for position, domain, label in zip(rows.positions, rows.domains, rows.labels, strict=True):
        if not domain or not label:
            raise InputError(f"{position}: the {'label' if domain else 'domain'} is empty")
    known, classes = sorted(set(rows.domains)), _sorted_labels(set(rows.labels))
    for name in request.domains:
        if name not in known:
            raise InputError(f"domains={name}: there are no such rows in {request.root}{did_you_mean(name, known)}")
    labels = np.array([classes.index(label) for label in rows.labels])
    site_names = sorted(set(rows.sites))
    sites = np.array([site_names.index(site) for site in rows.sites]) if request.options["site_column"] else None
    found = []
    for name in request.domains or tuple(known):
        selected = np.array([domain == name for domain in rows.domains])
        row_sites = sites[selected] if sites is not None else None
        found.append(domain_split(name, x[selected], labels[selected], request, row_sites, len(site_names)))
    benchmark = Benchmark("folders", tuple(found), tuple(classes), kind=kind)
    return _standardised(benchmark) if kind == "table" else benchmark


def _sorted_labels(labels: set[str]) -> list[str]:
    return sorted(labels, key=lambda label: (0, float(label), label) if csv_table.is_number(label) else (1, 0.0, label))


def _standardised(benchmark: Benchmark) -> Benchmark:
    """Columns standardised with the mean and deviation of the first domain's training rows.

    Later domains are not known when training begins. A federation can compute both numbers from sums and sums of
    squares, without sharing rows.
    """
    import torch

    from fedspecial.data.benchmark import Samples

    first = benchmark.domains[0].train.x.numpy()
    known = np.maximum((~np.isnan(first)).sum(axis=0), 1)
    mean = np.nan_to_num(first).sum(axis=0) / known
    std = np.sqrt(np.nan_to_num((first - mean) ** 2).sum(axis=0) / known)
    # A 0/1 column stays as it is: its deviation in the first domain says nothing about the next domain.
    binary = np.array([set(np.unique(values[~np.isnan(values)])) <= {0.0, 1.0} for values in first.T])
    mean, std = np.where(binary, 0, mean), np.where(binary | (std == 0), 1, std)

    def scale(samples: Samples) -> Samples:
        return Samples((samples.x - torch.from_numpy(mean).float()) / torch.from_numpy(std).float(), samples.y)

    domains = tuple(replace(d, train=scale(d.train), test=scale(d.test)) for d in benchmark.domains)
    return replace(benchmark, domains=domains)


ENTRY = Entry(
    name="folders",
    title="Your own data: domain/class/image, site/domain/class/image, CSV or JSON lines",
    kind="image",
    domains=(),
    num_classes=0,
    licence="the user's own data",
    load=load,
    files=files,
    example_texts=example_texts,
    options=OPTIONS,
)
