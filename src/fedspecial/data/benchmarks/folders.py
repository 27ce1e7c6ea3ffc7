"""The user's own data without code: a tree of images, CSV files with a domain column, or JSON lines of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedspecial.data.entry import Entry
from fedspecial.data.formats import image_folders
from fedspecial.data.loading import own_rows, text_domains
from fedspecial.data.loading.image_domains import MEAN, STD, image_domain
from fedspecial.data.loading.request import LoadRequest
from fedspecial.data.schema import Kind
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


SUFFIXES = {"csv": (".csv", ".tsv", ".csv.gz", ".tsv.gz"), "jsonl": (".jsonl", ".jsonl.gz")}
KINDS: Mapping[str, Kind] = {"csv": "table", "jsonl": "text", "images": "image"}


def format_of(root: Path) -> Literal["csv", "jsonl", "images"]:
    """The format of the data folder, or of the one file that is given in its place."""
    if files_of(root, "csv"):
        return "csv"
    if files_of(root, "jsonl"):
        return "jsonl"
    if not root.is_dir():
        raise InputError(f"{root}: neither a folder of images nor a .csv, .tsv or .jsonl file (or one of these as .gz)")
    return "images"


def kind_of(root: Path) -> Kind:
    return KINDS[format_of(root)]


def files_of(root: Path, format: Literal["csv", "jsonl"]) -> list[Path]:
    candidates = [root] if root.is_file() else sorted(path for path in root.iterdir() if path.is_file())
    return [path for path in candidates if path.name.lower().endswith(SUFFIXES[format])]


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
    encoding = text_domains.encoding_of(request)
    rows = own_rows.read_json(request, files_of(request.root, "jsonl"))
    x = text_domains.make_encoder(encoding)(tuple(rows.content))
    return own_rows.benchmark(request, rows, x, encoding)


def example_texts(request: LoadRequest, domain: str, classes: tuple[str, ...]) -> list[tuple[str, ...]]:
    rows = own_rows.read_json(request, files_of(request.root, "jsonl"))
    chosen = {label[0]: row for row, label in enumerate(rows.labels) if rows.domains[row] == domain}
    return [rows.content[chosen[label]] for label in classes]


def _load_csv(request: LoadRequest) -> Benchmark:
    names, rows = own_rows.read_csv(request, files_of(request.root, "csv"))
    return own_rows.table_benchmark(request, names, rows)


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
    kind_of=kind_of,
)
