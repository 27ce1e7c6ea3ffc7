"""PACS, VLCS and a user's own image folders: trees of images with a fixed 70/30 split per domain and seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.cache import Decoded, cached
from fedspecial.data.formats import folders
from fedspecial.data.formats.common import Bad, Chunk, Request, tell_skipped
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark, Domain

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, as is usual for natural images."""
SIZE = 224


def base(request: Request) -> Path:
    """The folder with the domains: named after the benchmark, or the data folder itself."""
    name = str(request.options["folder"])
    for candidate in (request.root / name, request.root / name / "kfold", request.root):
        if all((candidate / domain).is_dir() for domain in request.domains):
            return candidate
    return request.root / name


def needs(request: Request, domain: str) -> list[Path]:
    return [base(request) / domain]


def count(request: Request, domain: str) -> tuple[int, int | None]:
    folder = base(request) / domain
    return sum(len(folders.images(folder / name)) for name in folders.subfolders(folder)), None


def load(request: Request, classes: tuple[str, ...]) -> Benchmark:
    """A published tree with known domains and classes."""
    from fedspecial.data.benchmark import Benchmark

    found = []
    for domain in request.domains:
        folder = base(request) / domain
        if not folder.is_dir():
            raise InputError(f"{request.shown(folder)}: not in the data folder {request.root}{request.place(domain)}")
        found.append(_domain(request, domain, [folder], classes))
    return Benchmark(str(request.options["folder"]).lower(), tuple(found), classes, mean=MEAN, std=STD)


def load_own(request: Request) -> Benchmark:
    """A user's own tree: what its folders are called is what there is."""
    from fedspecial.data.benchmark import Benchmark

    root = request.root
    sites = folders.subfolders(root) if folders.has_sites(root) else []
    homes = [root / site for site in sites] or [root]
    known = sorted({name for home in homes for name in folders.subfolders(home)})
    for name in request.domains:
        if name not in known:
            raise InputError(f"domains: no folder '{name}' in {root}{did_you_mean(name, known)}")
    domains = request.domains or tuple(known)
    parts = {domain: [home / domain for home in homes] for domain in domains}
    classes = tuple(
        sorted({name for part in parts.values() for folder in part if folder.is_dir() for name in _classes(folder)})
    )
    found = tuple(_domain(request, domain, part, classes) for domain, part in parts.items())
    return Benchmark("folders", found, classes, mean=MEAN, std=STD)


def _classes(folder: Path) -> list[str]:
    return [name for name in folders.subfolders(folder) if folders.images(folder / name)]


def _domain(request: Request, domain: str, parts: Sequence[Path], classes: tuple[str, ...]) -> Domain:
    from fedspecial.data.formats.assemble import domain_split

    bad = Bad(request.on_bad)
    tree = folders.scan(parts, classes, domain, bad)
    tell_skipped(f"domain '{domain}'", bad.found, request.notice)
    folders.refuse_missing_classes(tree, classes, request.shown(parts[0]) if len(parts) == 1 else f"domain '{domain}'")
    decoded = decode_files(request, f"domain '{domain}'", tree.files, tree.labels)
    sites = None
    if tree.sites is not None:
        sites = np.delete(tree.sites, [row for row, _ in decoded.skipped])
    return domain_split(domain, decoded.x, decoded.y, request, sites, len(parts))


def decode_files(request: Request, what: str, files: Sequence[Path], labels: np.ndarray) -> Decoded:
    """The images decoded once, at the size asked for."""
    size = request.image_size or SIZE

    def build(bad: Bad) -> Iterator[Chunk]:
        return folders.decode(files, labels, size, bad, request.tick, request.shown)

    decoded = cached(
        files,
        {"reader": "images/1", "size": size, "labels": hashlib.sha256(labels.tobytes()).hexdigest()},
        build,
        folder=request.cache,
        on_bad=request.on_bad,
        fresh=request.fresh,
        notice=request.notice,
    )
    tell_skipped(what, decoded.skipped, request.notice)
    return decoded
