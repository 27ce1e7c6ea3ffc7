"""Domains from trees of image files: the published layout of PACS and VLCS, and the user's own folders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.cache import Decoded, cached
from fedspecial.data.formats import image_folders
from fedspecial.data.loading.bad_rows import BadRows, Chunk, report_skipped
from fedspecial.data.loading.request import LoadRequest

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.samples import Domain

DOMAINBED = "DomainBed's download script, https://github.com/facebookresearch/DomainBed"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Those of ImageNet, as is usual for natural images."""
SIZE = 224


@dataclass(frozen=True)
class PublishedTree:
    """A benchmark published as domain/class/image with known domains and classes."""

    name: str
    folder: str
    classes: tuple[str, ...]

    def base(self, request: LoadRequest) -> Path:
        """The folder with the domains: the benchmark's own, or the data folder itself."""
        name = str(request.options["folder"])
        for candidate in (request.root / name, request.root / name / "kfold", request.root):
            if all((candidate / domain).is_dir() for domain in request.domains):
                return candidate
        return request.root / name

    def files(self, request: LoadRequest, domain: str) -> list[Path]:
        return [self.base(request) / domain]

    def count(self, request: LoadRequest, domain: str) -> tuple[int, int | None]:
        folder = self.base(request) / domain
        return sum(len(image_folders.images(folder / name)) for name in image_folders.subfolders(folder)), None

    def load(self, request: LoadRequest) -> Benchmark:
        from fedspecial.data.benchmark import Benchmark

        domains = []
        for domain in request.domains:
            folder = self.base(request) / domain
            if not folder.is_dir():
                raise request.missing_file(folder, domain)
            domains.append(image_domain(request, domain, [folder], self.classes, complete=True))
        return Benchmark(self.name, tuple(domains), self.classes, mean=MEAN, std=STD)


def image_domain(
    request: LoadRequest, domain: str, folders: Sequence[Path], classes: tuple[str, ...], *, complete: bool = False
) -> Domain:
    """One domain from its folder, or from its folders at several sites; `complete`: it must have every class."""
    from fedspecial.data.loading.splits import domain_split

    bad = BadRows(request.on_bad)
    tree = image_folders.scan(folders, classes, domain, bad)
    report_skipped(f"domain '{domain}'", bad.found, request.notice)
    if complete:
        image_folders.refuse_missing_classes(tree, classes, request.display_name(folders[0]))
    decoded = decode_files(request, f"domain '{domain}'", tree.files, tree.labels)
    sites = None
    if tree.sites is not None:
        sites = np.delete(tree.sites, [row for row, _ in decoded.skipped])
    return domain_split(domain, decoded.x, decoded.y, request, sites, len(folders))


def decode_files(request: LoadRequest, part: str, files: Sequence[Path], labels: np.ndarray) -> Decoded:
    """The images at the requested size, from the cache if they were decoded before."""
    size = request.image_size or SIZE

    def build(bad: BadRows) -> Iterator[Chunk]:
        return image_folders.decode(files, labels, size, bad, request.progress, request.display_name)

    decoded = cached(
        files,
        {"reader": "images/1", "size": size, "labels": hashlib.sha256(labels.tobytes()).hexdigest()},
        build,
        folder=request.cache,
        on_bad=request.on_bad,
        fresh=request.fresh,
        notice=request.notice,
    )
    report_skipped(part, decoded.skipped, request.notice)
    return decoded
