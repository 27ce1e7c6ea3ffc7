"""Trees of image files: `domain/class/image`, or `site/domain/class/image` where the sites are real."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from fedspecial.data.formats.common import Bad, Chunk, Tick
from fedspecial.errors import InputError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
CHUNK = 256


@dataclass(frozen=True)
class Tree:
    """The image files of one domain with their labels and, where there are sites, whose they are."""

    files: tuple[Path, ...]
    labels: np.ndarray
    sites: np.ndarray | None = None


def subfolders(folder: Path) -> list[str]:
    """In alphabetical order, whatever the file system's order is."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def images(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_file() and not entry.name.startswith("."))
    return [folder / name for name in names if os.path.splitext(name)[1].lower() in SUFFIXES]


def has_sites(root: Path) -> bool:
    """Whether the images lie four levels deep. Mixed depths are refused: either reading would lose files."""
    depths = {depth: path for depth, path in _depths(root)}
    if len(depths) > 1:
        shown = " and ".join(str(path.relative_to(root)) for path in depths.values())
        raise InputError(
            f"{root}: images at different depths ({shown}); use domain/class/image or site/domain/class/image"
        )
    if not depths:
        raise InputError(f"{root}: no images in it as domain/class/image or site/domain/class/image")
    return 4 in depths


def _depths(root: Path) -> Iterator[tuple[int, Path]]:
    for first in subfolders(root):
        for second in subfolders(root / first):
            yield from ((3, image) for image in images(root / first / second)[:1])
            for third in subfolders(root / first / second):
                yield from ((4, image) for image in images(root / first / second / third)[:1])


def scan(folders: Sequence[Path], classes: Sequence[str], shown: str, bad: Bad) -> Tree:
    """The images of one domain; `folders` has one folder, or one a site in the sites' order.

    Folder names are labels: one that is no class is a label outside the set.
    """
    files: list[Path] = []
    labels: list[int] = []
    sites: list[int] = []
    for site, folder in enumerate(folders):
        before = len(files)
        for name in subfolders(folder) if folder.is_dir() else []:
            found = images(folder / name)
            if name not in classes:
                if found:
                    bad.add(-1, f"{folder / name}: '{name}' is not one of the classes {', '.join(classes)}")
                continue
            files += found
            labels += [list(classes).index(name)] * len(found)
        sites += [site] * (len(files) - before)
        if len(files) == before:
            bad.add(-1, f"{folder}: no images there; domain '{shown}' needs some in class/image folders")
    return Tree(tuple(files), np.array(labels, np.int64), np.array(sites, np.int64) if len(folders) > 1 else None)


def refuse_missing_classes(tree: Tree, classes: Sequence[str], folder: str) -> None:
    """A class that one domain lacks would make another task of it."""
    for label in sorted(set(range(len(classes))) - set(np.unique(tree.labels).tolist())):
        raise InputError(
            f"{folder}: no images of class '{classes[label]}'; "
            "each domain of a domain-incremental run needs every class"
        )


def decode(
    files: Sequence[Path], labels: np.ndarray, size: int, bad: Bad, tick: Tick, shown: Callable[[Path], str]
) -> Iterator[Chunk]:
    """Square RGB images in chunks, on all cores: the decoder lets go of Python's lock, so threads do."""
    rows = iter(range(len(files)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while part := list(islice(rows, CHUNK)):
            pictures = []
            kept = []
            for row, picture in zip(part, pool.map(lambda row: _picture(files[row], size), part), strict=True):
                if isinstance(picture, str):
                    bad.add(row, f"{shown(files[row])}: {picture}")
                else:
                    pictures.append(picture)
                    kept.append(row)
            tick(part[-1] + 1, len(files))
            if kept:
                yield np.stack(pictures), labels[kept]


def _picture(file: Path, size: int) -> np.ndarray | str:
    """One image (3, size, size), or why not."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            see_through = image.mode == "P" and "transparency" in image.info
            square = (image.convert("RGBA") if see_through else image).convert("RGB")
            if square.size != (size, size):
                square = square.resize((size, size), Image.Resampling.BILINEAR)
    except FileNotFoundError:
        return "missing"
    except Exception as error:  # a damaged image fails in as many ways as there are decoders
        return f"not a readable image ({type(error).__name__}: {error})".replace(str(file), file.name)
    return np.asarray(square).transpose(2, 0, 1)
