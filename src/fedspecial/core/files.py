"""Files named by their content: written completely or not at all, never changed, checked when read."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedspecial.errors import InputError


class BlobStore:
    """A folder of immutable byte strings, each under its SHA-256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._unsynced: set[str] = set()
        self._sound: set[str] = set()

    def put(self, data: bytes) -> str:
        """Store; durable only after `sync`. A file that a killed process left is not trusted but written again."""
        name = hashlib.sha256(data).hexdigest()
        path = self.folder / name
        if name not in self._sound or not path.exists():
            part = path.with_suffix(".part")
            part.write_bytes(data)
            os.replace(part, path)
            self._unsynced.add(name)
            self._sound.add(name)
        return name

    def get(self, name: str) -> bytes:
        path = self.folder / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise InputError(f"checkpoint: the file {path} is missing") from None
        if hashlib.sha256(data).hexdigest() != name:
            raise InputError(f"checkpoint: the file {path} was changed or cut off (its content no longer has its hash)")
        self._sound.add(name)
        return data

    def sync(self) -> None:
        for name in sorted(self._unsynced):
            if (self.folder / name).exists():
                sync_file(self.folder / name)
        sync_file(self.folder)
        self._unsynced.clear()

    def keep(self, names: Iterable[str]) -> None:
        """Remove everything else."""
        wanted = set(names)
        self._sound &= wanted
        for path in self.folder.iterdir():
            if path.name not in wanted:
                path.unlink()


@contextmanager
def owner_only() -> Iterator[None]:
    """New files and folders of this process can be read by their owner only (0600 and 0700)."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def sync_file(path: Path) -> None:
    """Make a file's content, or a folder's list of names, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file in one step: a reader, or a kill at any moment, sees the old one or the new one."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)  # on a full disk, an unfinished file must not take the rest of the room
        raise
    sync_file(path.parent)


def write_new(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Create a file and never replace one; after an error, such as a full disk, there is none."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise


def write_folder_atomic(folder: Path, files: Mapping[str, bytes]) -> None:
    """Create a folder with these files in one step; after an error there is no folder."""
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        for name, data in files.items():
            write_atomic(part / name, data)
        part.rename(folder)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync_file(folder.parent)
