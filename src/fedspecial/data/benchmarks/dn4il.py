"""DN4IL: a subset of DomainNet, selected and split by list files with lines `domain/class/file label`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.entry import Entry
from fedspecial.data.loading.bad_rows import BadRows, check_labels, report_skipped
from fedspecial.data.loading.image_domains import MEAN, STD, decode_files
from fedspecial.data.loading.request import LoadRequest
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

NUM_CLASSES = 100
LISTS = ("DN4IL-lists", "DN4IL", "DomainNet/DN4IL-lists", "DomainNet")
IMAGES = ("DomainNet", "domain_net", "domainnet", "DN4IL", ".")


def list_file(request: LoadRequest, domain: str, part: str) -> Path:
    """The path of the list, or its expected path if it is missing."""
    places = [request.root / folder / f"{domain}_{part}.txt" for folder in LISTS]
    return next((place for place in places if place.is_file()), places[0])


def image_root(request: LoadRequest, domain: str) -> Path:
    places = [request.root / folder for folder in IMAGES]
    return next((place for place in places if (place / domain).is_dir()), places[0])


def read_list(request: LoadRequest, domain: str, part: str, bad: BadRows) -> tuple[list[Path], np.ndarray]:
    """The image files of a list and their labels."""
    path = list_file(request, domain, part)
    if not path.is_file():
        raise request.missing_file(path, domain)
    root = image_root(request, domain)
    files, labels = [], []
    for row, line in enumerate(path.read_text("utf-8", "replace").splitlines()):
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.lstrip("-").isdigit() or ".." in Path(name).parts or Path(name).is_absolute():
            bad.add(row, f"{request.display_name(path)}: row {row + 1}: not 'domain/class/file label': {line[:60]!r}")
            name, label = "", "0"
        files.append(root / name)
        labels.append(int(label))
    y = np.array(labels, np.int64)
    check_labels(y, NUM_CLASSES, request.display_name(path), bad)
    rows = bad.good_rows(len(files))
    return [files[row] for row in rows], y[rows]


def files(request: LoadRequest, domain: str) -> list[Path]:
    wanted: list[Path] = []
    for part in ("train", "test"):
        wanted.append(list_file(request, domain, part))
        if wanted[-1].is_file():
            wanted += read_list(request, domain, part, BadRows("skip"))[0]
    return wanted


def count(request: LoadRequest, domain: str) -> tuple[int, int | None]:
    """The number of listed images that exist."""
    found = [sum(map(Path.is_file, read_list(request, domain, part, BadRows("skip"))[0])) for part in ("train", "test")]
    return found[0], found[1]


def load(request: LoadRequest) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.loading.splits import domain_as_published

    found = []
    names: dict[int, str] = {}
    for domain in request.domains:
        parts = []
        for part in ("train", "test"):
            bad = BadRows(request.on_bad)
            files, labels = read_list(request, domain, part, bad)
            report_skipped(f"domain '{domain}' {part} list", bad.found, request.notice)
            names.update({int(label): file.parent.name for file, label in zip(files, labels, strict=True)})
            files, labels = _present(request, domain, part, files, labels)
            decoded = decode_files(request, f"domain '{domain}' {part}", files, labels)
            parts.append((decoded.x, decoded.y))
        found.append(domain_as_published(domain, parts[0], parts[1], request))
    known = tuple(names.get(label, str(label)) for label in range(NUM_CLASSES))
    return Benchmark("dn4il", tuple(found), known, mean=MEAN, std=STD)


def _present(
    request: LoadRequest, domain: str, part: str, files: list[Path], labels: np.ndarray
) -> tuple[list[Path], np.ndarray]:
    """An image that is listed but missing from the folder is a bad sample."""
    bad = BadRows(request.on_bad)
    listed = request.display_name(list_file(request, domain, part))
    for row, file in enumerate(files):
        if not file.is_file():
            hint = request.download_hint(domain)
            bad.add(row, f"{request.display_name(file)}: missing; row {row + 1} of {listed} names it{hint}")
    report_skipped(f"domain '{domain}' {part}", bad.found, request.notice)
    rows = bad.good_rows(len(files))
    if len(rows) == 0:
        hint = request.download_hint(domain)
        raise InputError(f"domain '{domain}' {part}: none of the {len(files)} images of {listed} exists{hint}")
    return [files[row] for row in rows], labels[rows]


ENTRY = Entry(
    name="dn4il",
    title="DN4IL: a hundred classes of DomainNet in six styles",
    kind="image",
    domains=("sketch", "infograph", "painting", "quickdraw", "real", "clipart"),
    num_classes=NUM_CLASSES,
    licence="DomainNet: non-commercial research and education",
    load=load,
    files=files,
    count=count,
    sources={
        "": "http://ai.bu.edu/M3SDA/ (cleaned version); the lists from https://github.com/NeurAI-Lab/DN4IL-dataset"
    },
    sizes={
        "sketch": (11416, 3269),
        "infograph": (9970, 2930),
        "painting": (11495, 3276),
        "quickdraw": (12500, 3500),
        "real": (12494, 3473),
        "clipart": (9205, 3016),
    },
)
