"""Digit-10: four published sets of digits with one input shape (3×32×32); FEMNIST's digits as a further domain.

EMNIST's files contain each image transposed (rows and columns exchanged), and common readers return them like that.
Here `emnist` is upright, `emnist-transposed` is as in the files, and `femnist-transposed` is FEMNIST transposed in
the same way.
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
from fedspecial.data.entry import Entry
from fedspecial.data.formats import idx, libsvm, mat
from fedspecial.data.loading.bad_rows import BadRows, Chunk, good_chunk, report_skipped
from fedspecial.data.loading.request import LoadRequest
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

SIDE = 32
CLASSES = tuple("0123456789")


@dataclass(frozen=True)
class Source:
    """The usual folders of a data set, and the files of its training and test part: one file, or images and labels."""

    folders: tuple[str, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]


def _idx_files(folders: tuple[str, ...], train: str, test: str) -> Source:
    names = [(f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz") for part in (train, test)]
    return Source(folders, names[0], names[1])


_EMNIST = _idx_files(("EMNIST/raw", "EMNIST", "EMNIST/gzip"), "emnist-digits-train", "emnist-digits-test")
_FEMNIST = _idx_files(("FEMNIST-digits",), "femnist-digits-train", "femnist-digits-test")
TO_TRANSPOSE = ("emnist", "femnist-transposed")
"""Domains whose images are transposed after reading: EMNIST's become upright, FEMNIST's look like EMNIST's files."""

SOURCES = {
    "usps": Source(("USPS", "usps"), ("usps.bz2",), ("usps.t.bz2",)),
    "svhn": Source(("SVHN", "svhn"), ("train_32x32.mat",), ("test_32x32.mat",)),
    "emnist": _EMNIST,
    "mnist": _idx_files(("MNIST/raw", "MNIST"), "train", "t10k"),
    "femnist": _FEMNIST,
    "emnist-transposed": _EMNIST,
    "femnist-transposed": _FEMNIST,
}


def _files(request: LoadRequest, domain: str, part: str) -> list[Path]:
    """The files of a part, or their expected paths if they are missing."""
    source = SOURCES[domain]
    names = source.train if part == "train" else source.test
    found = []
    for name in names:
        candidates = [request.root / folder / variant for folder in source.folders for variant in _variants(name)]
        found.append(next((path for path in candidates if path.is_file()), candidates[0]))
    return found


def _variants(name: str) -> tuple[str, ...]:
    """The file as published, and decompressed."""
    return name, name.rsplit(".", 1)[0] if name.endswith(".gz") else name


def files(request: LoadRequest, domain: str) -> list[Path]:
    return _files(request, domain, "train") + _files(request, domain, "test")


def count(request: LoadRequest, domain: str) -> tuple[int, int | None]:
    """The sizes from the headers of the files, without decoding them."""
    return _count(_files(request, domain, "train")[0]), _count(_files(request, domain, "test")[0])


def _count(path: Path) -> int:
    if path.suffix == ".mat":
        from scipy.io import whosmat

        return int({name: shape for name, shape, _ in whosmat(path)}["X"][-1])
    if "usps" in path.name:
        return len(libsvm.lines(path))
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        return int(struct.unpack(">4xI", stream.read(8))[0])


def load(request: LoadRequest) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.loading.splits import domain_as_published

    domains = []
    for name in request.domains:
        train, test = (_decoded(request, name, part) for part in ("train", "test"))
        domains.append(domain_as_published(name, (train.x, train.y), (test.x, test.y), request))
    return Benchmark("digit10", tuple(domains), CLASSES, mean=(0.5,) * 3, std=(0.5,) * 3)


def _decoded(request: LoadRequest, domain: str, part: str) -> Decoded:
    files = _files(request, domain, part)
    for file in files:
        if not file.exists():
            raise request.missing_file(file, domain)

    def build(bad: BadRows) -> Iterator[Chunk]:
        x, y = _read(domain, files, bad)
        yield from good_chunk(x, y, bad)

    decoded = cached(
        files,
        {"reader": f"digit10/{domain}/1"},
        build,
        folder=request.cache,
        on_bad=request.on_bad,
        fresh=request.fresh,
        notice=request.notice,
    )
    report_skipped(f"domain '{domain}' {part}", decoded.skipped, request.notice)
    request.progress(1, 1)
    return decoded


def _read(domain: str, files: list[Path], bad: BadRows) -> Chunk:
    """Images (n, 1 or 3, 32, 32). 28×28 images get a margin of 2 pixels, 16×16 images are enlarged."""
    if domain == "svhn":
        return mat.read(files[0], bad)
    if domain == "usps":
        small, y = libsvm.read(files[0], bad)
        return _enlarged(small)[:, None], y
    images, y = idx.read(files[0], files[1], bad)
    if domain in TO_TRANSPOSE:
        images = images.transpose(0, 2, 1)
    margin = (SIDE - np.array(images.shape[1:])) // 2
    if (margin < 0).any():
        raise InputError(f"{files[0].name}: images of {images.shape[1]}×{images.shape[2]}, expected 28×28")
    rest = SIDE - np.array(images.shape[1:]) - margin
    return np.pad(images, ((0, 0), *zip(margin, rest, strict=True)))[:, None], y


def _enlarged(images: np.ndarray) -> np.ndarray:
    """Bilinear, to 32×32."""
    from PIL import Image

    resized = [Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR) for image in images]
    return np.stack([np.asarray(image) for image in resized])


_EMNIST_SOURCE = "https://www.nist.gov/itl/products-and-services/emnist-dataset (gzip.zip, the digits)"
_FEMNIST_SOURCE = "https://github.com/TalwalkarLab/leaf, digits written to idx files"

ENTRY = Entry(
    name="digit10",
    title="Digit-10: handwritten, printed and photographed digits",
    kind="image",
    domains=("usps", "svhn", "emnist", "mnist"),
    extra_domains=("femnist", "emnist-transposed", "femnist-transposed"),
    classes=CLASSES,
    num_classes=10,
    licence="MNIST CC BY-SA 3.0; SVHN non-commercial use; EMNIST, FEMNIST and USPS state none",
    load=load,
    files=files,
    count=count,
    sources={
        "usps": "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
        "svhn": "http://ufldl.stanford.edu/housenumbers/",
        "emnist": _EMNIST_SOURCE,
        "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "femnist": _FEMNIST_SOURCE,
        "emnist-transposed": f"{_EMNIST_SOURCE}, as they are in the files",
        "femnist-transposed": f"{_FEMNIST_SOURCE}, transposed by the program",
    },
    sizes={
        "usps": (7291, 2007),
        "svhn": (73257, 26032),
        "emnist": (240000, 40000),
        "emnist-transposed": (240000, 40000),
        "mnist": (60000, 10000),
    },
    md5={
        "train-images-idx3-ubyte:content": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte:content": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte:content": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte:content": "27ae3e4e09519cfbb04c329615203637",
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        "usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197",
        "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118",
    },
)
