"""A cache of decoded images: uint8 arrays in memory-mapped files that later runs and other processes share.

An entry is identified by *content*: the SHA-256 of the bytes of every source file and of the recipe (reader, its
version, image size, labels). Data that was moved or copied still finds its entry; data that changed does not. To
avoid reading ten thousand files for one lookup, a small file remembers the digest for a list of (path, size,
modification time), as version control systems do; if any of them differs, the bytes are hashed again.

An entry consists of two files. `KEY.bin` has the inputs followed by the labels. `KEY.json` has the shape, the
length, the CRC-32 of every block and the skipped samples. It is written last, so an interrupted write never leaves
a partial entry. Reading checks length and blocks; a damaged entry is decoded again, with a notice. Nothing is ever
unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspecial.data.loading.bad_rows import BadRows, Chunk, Notice, OnBad, ignore
from fedspecial.errors import InputError

VERSION = 1
BLOCK = 2**24
MAX_CHECKED = 2**29
"""At each load at most this many bytes of an entry are checked, in blocks spread evenly over it."""


@dataclass(frozen=True)
class Decoded:
    """Inputs (memory-mapped if the cache could be written), labels, and the skipped rows with the reasons."""

    x: np.ndarray
    y: np.ndarray
    skipped: tuple[tuple[int, str], ...] = ()


def default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedspecial"


def cached(
    files: Sequence[Path],
    recipe: Mapping[str, Any],
    build: Callable[[BadRows], Iterator[Chunk]],
    *,
    folder: Path | None = None,
    on_bad: OnBad = "stop",
    fresh: bool = False,
    notice: Notice = ignore,
) -> Decoded:
    """What `build` yields for these files, from the cache if they were decoded before.

    fresh: read the files again and replace the entry

    If the cache folder cannot be written, the images are decoded without a cache.
    """
    folder = folder or default_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        key = _key(files, recipe, folder, fresh)
        found = None if fresh else _open(folder / key, notice)
        if found is None:
            _write(folder / key, build, on_bad)
            found = _open(folder / key, notice)
    except OSError as error:
        if error.filename is not None and Path(error.filename) in files:
            raise InputError(f"{error.filename}: {error.strerror}") from None
        notice(f"cache {folder}: {error.strerror or error}; decoding without a cache")
        found = None
    decoded = found or _in_memory(build, on_bad)
    if decoded.skipped and on_bad == "stop":
        raise InputError(decoded.skipped[0][1])
    return decoded


def _key(files: Sequence[Path], recipe: Mapping[str, Any], folder: Path, fresh: bool) -> str:
    text = json.dumps({**recipe, "cache": VERSION}, sort_keys=True)
    return hashlib.sha256((text + _contents(files, folder, fresh)).encode()).hexdigest()[:40]


def _contents(files: Sequence[Path], folder: Path, fresh: bool) -> str:
    """One digest of the bytes of all files, remembered by their paths, sizes and modification times."""
    stats = [(str(file.absolute()), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    note = folder / f"seen-{hashlib.sha256(json.dumps(stats).encode()).hexdigest()[:40]}"
    if not fresh and note.is_file() and len(digest := note.read_text("ascii", "replace").strip()) == 64:
        return digest
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(_digest, files))
    digest = hashlib.sha256("".join(parts).encode()).hexdigest()
    _replace(note, digest.encode())
    return digest


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _replace(path: Path, content: bytes) -> None:
    # Not `write_atomic`: several processes may write the same entry, so each needs a temporary name of its own.
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(entry: Path, build: Callable[[BadRows], Iterator[Chunk]], on_bad: OnBad) -> None:
    """Write the chunks to a temporary file and rename it when it is complete."""
    bad, labels, shape = BadRows(on_bad), [np.zeros(0, np.int64)], None
    temporary = entry.with_name(f".{entry.name}.{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open("wb") as stream:
            for x, y in build(bad):
                shape = x.shape[1:]
                stream.write(np.ascontiguousarray(x, dtype=np.uint8).data)
                labels.append(np.asarray(y, dtype=np.int64))
            y = np.concatenate(labels)
            stream.write(y.tobytes())
            stream.flush()
            os.fsync(stream.fileno())
        if shape is None or len(y) == 0:
            raise InputError(bad.found[0][1] if bad.found else f"{entry.name}: there are no samples")
        size = temporary.stat().st_size
        head = {
            "version": VERSION,
            "shape": [len(y), *shape],
            "bytes": size,
            "crc32": _checksums(temporary, range(_blocks(size))),
            "skipped": bad.found,
        }
        temporary.replace(entry.with_suffix(".bin"))
        _replace(entry.with_suffix(".json"), json.dumps(head).encode())
    finally:
        temporary.unlink(missing_ok=True)


def _open(entry: Path, notice: Notice) -> Decoded | None:
    head_file, body_file = entry.with_suffix(".json"), entry.with_suffix(".bin")
    if not head_file.is_file():
        return None
    damage, head = _damage(head_file, body_file)
    if damage:
        notice(f"cache {body_file.name}: {damage}; decoding again")
        return None
    shape = tuple(head["shape"])
    inputs = math.prod(shape)
    # Mode "c" is copy-on-write: torch gets a writable array, and the file never changes.
    x = np.memmap(body_file, dtype=np.uint8, mode="c", shape=shape)
    y = np.fromfile(body_file, dtype=np.int64, offset=inputs)
    return Decoded(x, y, tuple((int(row), str(line)) for row, line in head["skipped"]))


def _damage(head_file: Path, body_file: Path) -> tuple[str, dict[str, Any]]:
    try:
        head = json.loads(head_file.read_bytes())
        size, sums, shape = int(head["bytes"]), list(head["crc32"]), [int(side) for side in head["shape"]]
        skipped = head["skipped"]
    except (ValueError, KeyError, TypeError):
        return "its description cannot be read", {}
    if head.get("version") != VERSION or not isinstance(skipped, list):
        return "its description has another version", {}
    if not body_file.is_file() or body_file.stat().st_size != size or size != math.prod(shape) + 8 * shape[0]:
        return "it has the wrong length", {}
    blocks = range(0, len(sums), math.ceil(size / MAX_CHECKED) or 1)
    if len(sums) != _blocks(size) or _checksums(body_file, blocks) != [sums[block] for block in blocks]:
        return "its checksum is wrong", {}
    return "", head


def _blocks(size: int) -> int:
    return math.ceil(size / BLOCK)


def _checksums(file: Path, blocks: Sequence[int]) -> list[int]:
    data = np.memmap(file, dtype=np.uint8, mode="r")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda block: zlib.crc32(data[block * BLOCK : (block + 1) * BLOCK].data), blocks))


def _in_memory(build: Callable[[BadRows], Iterator[Chunk]], on_bad: OnBad) -> Decoded:
    bad = BadRows(on_bad)
    chunks = list(build(bad))
    if not chunks or not sum(len(y) for _, y in chunks):
        raise InputError(bad.found[0][1] if bad.found else "there are no samples")
    x = np.concatenate([x for x, _ in chunks])
    return Decoded(x, np.concatenate([y for _, y in chunks]).astype(np.int64), tuple(bad.found))
