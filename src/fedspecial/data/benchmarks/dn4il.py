"""DN4IL: DomainNet's images, chosen and split by list files of `domain/class/file label` lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.benchmarks.trees import MEAN, STD, decode_files
from fedspecial.data.formats.common import Bad, Request, check_labels, tell_skipped
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

NUM_CLASSES = 100
LISTS = ("DN4IL-lists", "DN4IL", "DomainNet/DN4IL-lists", "DomainNet")
IMAGES = ("DomainNet", "domain_net", "domainnet", "DN4IL", ".")


def list_file(request: Request, domain: str, part: str) -> Path:
    """Where the list is, or where it would be expected."""
    places = [request.root / folder / f"{domain}_{part}.txt" for folder in LISTS]
    return next((place for place in places if place.is_file()), places[0])


def image_root(request: Request, domain: str) -> Path:
    places = [request.root / folder for folder in IMAGES]
    return next((place for place in places if (place / domain).is_dir()), places[0])


def read_list(request: Request, domain: str, part: str, bad: Bad) -> tuple[list[Path], np.ndarray]:
    """The image files of a list and their labels."""
    path = list_file(request, domain, part)
    if not path.is_file():
        raise InputError(f"{request.shown(path)}: not in the data folder {request.root}{request.place(domain)}")
    root = image_root(request, domain)
    files, labels = [], []
    for row, line in enumerate(path.read_text("utf-8", "replace").splitlines()):
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.lstrip("-").isdigit() or ".." in Path(name).parts or Path(name).is_absolute():
            bad.add(row, f"{request.shown(path)}: row {row + 1}: not 'domain/class/file label': {line[:60]!r}")
            name, label = "", "0"
        files.append(root / name)
        labels.append(int(label))
    y = np.array(labels, np.int64)
    check_labels(y, NUM_CLASSES, request.shown(path), bad)
    rows = bad.keep(len(files))
    return [files[row] for row in rows], y[rows]


def needs(request: Request, domain: str) -> list[Path]:
    wanted: list[Path] = []
    for part in ("train", "test"):
        wanted.append(list_file(request, domain, part))
        if wanted[-1].is_file():
            wanted += read_list(request, domain, part, Bad("skip"))[0]
    return wanted


def count(request: Request, domain: str) -> tuple[int, int | None]:
    """How many of the listed images are there."""
    found = [sum(map(Path.is_file, read_list(request, domain, part, Bad("skip"))[0])) for part in ("train", "test")]
    return found[0], found[1]


def load(request: Request, classes: tuple[str, ...]) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.formats.assemble import domain_as_published

    found = []
    names: dict[int, str] = {}
    for domain in request.domains:
        parts = []
        for part in ("train", "test"):
            bad = Bad(request.on_bad)
            files, labels = read_list(request, domain, part, bad)
            tell_skipped(f"domain '{domain}' {part} list", bad.found, request.notice)
            names.update({int(label): file.parent.name for file, label in zip(files, labels, strict=True)})
            files, labels = _present(request, domain, part, files, labels)
            decoded = decode_files(request, f"domain '{domain}' {part}", files, labels)
            parts.append((decoded.x, decoded.y))
        found.append(domain_as_published(domain, parts[0], parts[1], request))
    known = tuple(names.get(label, str(label)) for label in range(NUM_CLASSES))
    return Benchmark("dn4il", tuple(found), known, mean=MEAN, std=STD)


def _present(
    request: Request, domain: str, part: str, files: list[Path], labels: np.ndarray
) -> tuple[list[Path], np.ndarray]:
    """An image that a list names and the folder lacks is a bad sample of that row."""
    bad = Bad(request.on_bad)
    listed = request.shown(list_file(request, domain, part))
    for row, file in enumerate(files):
        if not file.is_file():
            place = request.place(domain)
            bad.add(row, f"{request.shown(file)}: missing; row {row + 1} of {listed} names it{place}")
    tell_skipped(f"domain '{domain}' {part}", bad.found, request.notice)
    rows = bad.keep(len(files))
    if len(rows) == 0:
        raise InputError(
            f"domain '{domain}' {part}: none of the {len(files)} images of {listed} is there{request.place(domain)}"
        )
    return [files[row] for row in rows], labels[rows]
