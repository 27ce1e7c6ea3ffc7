"""Digit-10: four published sets of digits as one 3×32×32 input; FEMNIST's digits as a domain of its own.

EMNIST's files hold the digits mirrored at the diagonal, lying on their side, and common readers hand them out so. Here
`emnist` stands upright, `emnist-lying` is as the files have it, and `femnist-lying` is FEMNIST mirrored likewise.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.cache import Decoded, cached
from fedspecial.data.formats import idx, libsvm, mat
from fedspecial.data.formats.common import Bad, Chunk, Request, kept_chunk, tell_skipped
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

SIDE = 32
CLASSES = tuple("0123456789")


@dataclass(frozen=True)
class Source:
    """Folders a set is usually unpacked to, and its files: one a part, or images and labels."""

    folders: tuple[str, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]


def _idx(folders: tuple[str, ...], train: str, test: str) -> Source:
    names = [(f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz") for part in (train, test)]
    return Source(folders, names[0], names[1])


_EMNIST = _idx(("EMNIST/raw", "EMNIST", "EMNIST/gzip"), "emnist-digits-train", "emnist-digits-test")
_FEMNIST = _idx(("FEMNIST-digits",), "femnist-digits-train", "femnist-digits-test")
MIRRORED = ("emnist", "femnist-lying")

SOURCES = {
    "usps": Source(("USPS", "usps"), ("usps.bz2",), ("usps.t.bz2",)),
    "svhn": Source(("SVHN", "svhn"), ("train_32x32.mat",), ("test_32x32.mat",)),
    "emnist": _EMNIST,
    "mnist": _idx(("MNIST/raw", "MNIST"), "train", "t10k"),
    "femnist": _FEMNIST,
    "emnist-lying": _EMNIST,
    "femnist-lying": _FEMNIST,
}


def _files(request: Request, domain: str, part: str) -> list[Path]:
    """The files of a part where they are; where they would be expected if they are nowhere."""
    source = SOURCES[domain]
    names = source.train if part == "train" else source.test
    found = []
    for name in names:
        places = [request.root / folder / form for folder in source.folders for form in _forms(name)]
        found.append(next((place for place in places if place.is_file()), places[0]))
    return found


def _forms(name: str) -> tuple[str, ...]:
    """As published, and unpacked."""
    return name, name.rsplit(".", 1)[0] if name.endswith(".gz") else name


def needs(request: Request, domain: str) -> list[Path]:
    return _files(request, domain, "train") + _files(request, domain, "test")


def count(request: Request, domain: str) -> tuple[int, int | None]:
    """Sizes from the files' headers, without decoding them."""
    return _count(_files(request, domain, "train")[0]), _count(_files(request, domain, "test")[0])


def _count(path: Path) -> int:
    if path.suffix == ".mat":
        from scipy.io import whosmat

        return int({name: shape for name, shape, _ in whosmat(path)}["X"][-1])
    if "usps" in path.name:
        return len(libsvm.lines(path))
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        return int(struct.unpack(">4xI", stream.read(8))[0])


def load(request: Request, classes: tuple[str, ...]) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.formats.assemble import domain_as_published

    domains = []
    for name in request.domains:
        train, test = (_decoded(request, name, part) for part in ("train", "test"))
        domains.append(domain_as_published(name, (train.x, train.y), (test.x, test.y), request))
    return Benchmark("digit10", tuple(domains), classes, mean=(0.5,) * 3, std=(0.5,) * 3)


def _decoded(request: Request, domain: str, part: str) -> Decoded:
    files = _files(request, domain, part)
    for file in files:
        request.find(domain, request.shown(file))

    def build(bad: Bad) -> Iterator[Chunk]:
        x, y = _read(domain, files, bad)
        yield from kept_chunk(x, y, bad)

    decoded = cached(
        files,
        {"reader": f"digit10/{domain}/1"},
        build,
        folder=request.cache,
        on_bad=request.on_bad,
        fresh=request.fresh,
        notice=request.notice,
    )
    tell_skipped(f"domain '{domain}' {part}", decoded.skipped, request.notice)
    request.tick(1, 1)
    return decoded


def _read(domain: str, files: list[Path], bad: Bad) -> Chunk:
    """Images (n, 1 or 3, 32, 32). 28 pixels get a margin of 2, which keeps each pixel; 16 are doubled."""
    if domain == "svhn":
        return mat.read(files[0], bad)
    if domain == "usps":
        small, y = libsvm.read(files[0], bad)
        return _doubled(small)[:, None], y
    images, y = idx.read(files[0], files[1], bad)
    if domain in MIRRORED:
        images = images.transpose(0, 2, 1)
    margin = (SIDE - np.array(images.shape[1:])) // 2
    if (margin < 0).any():
        raise InputError(f"{files[0].name}: images of {images.shape[1]}×{images.shape[2]}, expected 28×28")
    rest = SIDE - np.array(images.shape[1:]) - margin
    return np.pad(images, ((0, 0), *zip(margin, rest, strict=True)))[:, None], y


def _doubled(images: np.ndarray) -> np.ndarray:
    """Bilinear, to 32×32."""
    from PIL import Image

    resized = [Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR) for image in images]
    return np.stack([np.asarray(image) for image in resized])
