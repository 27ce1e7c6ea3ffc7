"""Trees of image files: `domain/class/image`, or `site/domain/class/image` if the sites are given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspecial.data.loading.bad_rows import BadRows, Chunk
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

SUFFIXES = {".bmp", ".dcm", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
CHUNK = 256


@dataclass(frozen=True)
class ImageTree:
    """The image files of one domain with their labels and, if there are sites, the number of each file's site."""

    files: tuple[Path, ...]
    labels: np.ndarray
    sites: np.ndarray | None = None


def subfolders(folder: Path) -> list[str]:
    """In alphabetical order, whatever the order of the file system is."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def images(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_file() and not entry.name.startswith("."))
    return [folder / name for name in names if os.path.splitext(name)[1].lower() in SUFFIXES]


def has_sites(root: Path) -> bool:
    """Whether the images are four levels deep. Mixed depths are refused: any interpretation would lose files."""
    depths = {depth: path for depth, path in _depths(root)}
    if len(depths) > 1:
        examples = " and ".join(str(path.relative_to(root)) for path in depths.values())
        raise InputError(
            f"{root}: images at different depths ({examples}); use domain/class/image or site/domain/class/image"
        )
    if not depths:
        raise InputError(f"{root}: contains no images as domain/class/image or site/domain/class/image")
    return 4 in depths


def _depths(root: Path) -> Iterator[tuple[int, Path]]:
    for first in subfolders(root):
        for second in subfolders(root / first):
            yield from ((3, image) for image in images(root / first / second)[:1])
            for third in subfolders(root / first / second):
                yield from ((4, image) for image in images(root / first / second / third)[:1])


def scan(folders: Sequence[Path], classes: Sequence[str], domain: str, bad: BadRows) -> ImageTree:
    """The images of one domain. Folder names are labels.

    folders: the domain's folder, or one folder per site in the order of the sites
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
            bad.add(-1, f"{folder}: contains no images; domain '{domain}' needs some as class/image")
    return ImageTree(tuple(files), np.array(labels, np.int64), np.array(sites, np.int64) if len(folders) > 1 else None)


def refuse_missing_classes(tree: ImageTree, classes: Sequence[str], place: str) -> None:
    """A published benchmark has every class in every domain; without one, the download is incomplete."""
    for label in sorted(set(range(len(classes))) - set(np.unique(tree.labels).tolist())):
        raise InputError(
            f"{place}: no images of class '{classes[label]}'; the published data has every class in every domain"
        )


def decode(
    files: Sequence[Path],
    labels: np.ndarray,
    size: int,
    bad: BadRows,
    progress: Callable[[int, int], None],
    display_name: Callable[[Path], str],
) -> Iterator[Chunk]:
    """Square RGB images in chunks. Threads use all cores, because the decoder releases Python's global lock."""
    rows = iter(range(len(files)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while chunk := list(islice(rows, CHUNK)):
            decoded = []
            good = []
            for row, image in zip(chunk, pool.map(lambda row: _decode_image(files[row], size), chunk), strict=True):
                if isinstance(image, str):
                    bad.add(row, f"{display_name(files[row])}: {image}")
                else:
                    decoded.append(image)
                    good.append(row)
            progress(chunk[-1] + 1, len(files))
            if good:
                yield np.stack(decoded), labels[good]


def _decode_image(file: Path, size: int) -> np.ndarray | str:
    """One image (3, size, size), or the reason why it cannot be read."""
    from PIL import Image

    try:
        with _dicom_image(file) if file.suffix.lower() == ".dcm" else Image.open(file) as image:
            # Pillow warns when a palette with transparency is converted to RGB directly.
            transparent_palette = image.mode == "P" and "transparency" in image.info
            square = (image.convert("RGBA") if transparent_palette else image).convert("RGB")
            if square.size != (size, size):
                square = square.resize((size, size), Image.Resampling.BILINEAR)
    except FileNotFoundError:
        return "missing"
    except ModuleNotFoundError:
        return "a DICOM file, which needs pydicom: pip install 'fedspecial[dicom]'"
    except Exception as error:  # each decoder raises its own exceptions for a damaged image
        return f"not a readable image ({type(error).__name__}: {error})".replace(str(file), file.name)
    return np.asarray(square).transpose(2, 0, 1)


def _dicom_image(file: Path) -> PilImage:
    """The first frame of a DICOM file with its rescaling and window, black to white over the range of its values."""
    import pydicom
    from PIL import Image
    from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut

    found = pydicom.dcmread(file)
    pixels = found.pixel_array
    if int(found.get("NumberOfFrames", 1) or 1) > 1:
        pixels = pixels[0]
    if pixels.ndim == 3:
        return Image.fromarray(pixels.astype(np.uint8))
    values = np.asarray(apply_voi_lut(apply_modality_lut(pixels, found), found), np.float64)
    low, high = values.min(), values.max()
    grey = (values - low) / max(high - low, 1e-9)
    if found.get("PhotometricInterpretation") == "MONOCHROME1":
        grey = 1 - grey
    return Image.fromarray((255 * grey).round().astype(np.uint8))
