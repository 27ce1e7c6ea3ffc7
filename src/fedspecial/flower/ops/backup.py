"""Backups of a federation's state: the run directory of the server, or the state folder of a site. Needs no torch.

A backup is one .tar.gz file with all files of the folder and `manifest.json`, which has the SHA-256 of each. It can be
taken while the run works: its files are opened, and opened again if a checkpoint was written in the meantime. A file
that is replaced after that keeps its content for who has it open, and of one that grows only the first part is taken.
A restored server continues bit for bit if the sites still have the client states of its checkpoint; they keep those of
the last few. No file larger than `SMALL` is ever in memory as a whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import IO, cast

from fedspecial.core.files import owner_only
from fedspecial.errors import InputError

MANIFEST = "manifest.json"
ATTEMPTS = 10
SMALL = 1 << 20
"""Files up to this size are read when they are opened, so that few are open at the same time."""
NOT_REMOVED = (
    "its influence on the model is not removed: models that were trained with its updates stay as they are, and so do "
    "the lines about it in the audit log"
)


def back_up(folder: Path, file: Path) -> int:
    """Write the backup of a run directory or of a site's state folder; returns the number of files."""
    if not (folder / "federation.json").exists() and not site_runs(folder):
        raise InputError(f"{folder}: neither the run directory of a federation nor the state folder of a site")
    if file.absolute().is_relative_to(folder.absolute()):
        raise InputError(
            f"{file}: it is in the folder itself, so the next backup would contain it; choose another place"
        )
    if file.exists():
        raise InputError(f"{file}: it exists already; nothing was changed")
    for _ in range(ATTEMPTS):
        with contextlib.ExitStack() as stack:
            before = _position(folder)
            try:
                files = {name: _open(folder / name, stack) for name in _names(folder)}
            except FileNotFoundError:
                continue  # a checkpoint replaced it
            if _position(folder) == before:
                _write_archive(file, files)
                return len(files)
    raise InputError(f"{folder}: it changes too often to be copied; stop the run, or try again")


def restore(file: Path, folder: Path) -> int:
    """Write the content of a backup to a new folder, after all hashes were checked; returns the number of files."""
    if os.path.lexists(folder):
        raise InputError(f"{folder}: it exists already; nothing was changed (move it away first)")
    count = _check_archive(file)
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        with owner_only(), tarfile.open(file, "r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None and member.name != MANIFEST:
                    _write(part / member.name, content)
        part.rename(folder)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
    return count


def forget(folder: Path, run: str | None = None) -> list[str]:
    """Delete what a site stores about one run, or about all; returns the runs.

    The signed head of the server's audit log stays: it is the site's proof and contains nothing about its data.
    """
    found = site_runs(folder)
    if not found or (run is not None and run not in found):
        known = f" (it has {', '.join(found)})" if found else ""
        raise InputError(f"{folder}: it stores nothing about {f'run {run}' if run else 'any run'}{known}")
    chosen = [run] if run else found
    for name in chosen:
        for stored in ("states", "payloads"):
            shutil.rmtree(folder / name / stored, ignore_errors=True)
        (folder / name / "payloads.json").unlink(missing_ok=True)
    return chosen


def site_runs(folder: Path) -> list[str]:
    """The runs whose files are in a site's state folder."""
    if not folder.is_dir():
        return []
    kept = ("states", "payloads", "payloads.json", "audit-head.json")
    return sorted(path.name for path in folder.iterdir() if any((path / name).exists() for name in kept))


def _position(folder: Path) -> bytes:
    """Changes with every checkpoint of a server, and with every stored state of a site."""
    path = folder / "checkpoint" / "checkpoint.json"
    if path.exists():
        return path.read_bytes()
    return "\n".join(sorted(str(path) for path in folder.rglob("*"))).encode()


def _names(folder: Path) -> list[str]:
    """All files except unfinished ones, in an order in which the checkpoint comes first."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.suffix != ".part"]
    return sorted((name.as_posix() for name in files), key=lambda name: (not name.startswith("checkpoint/"), name))


def _open(path: Path, stack: contextlib.ExitStack) -> tuple[IO[bytes], int]:
    """A file and its size at this moment."""
    file = stack.enter_context(path.open("rb"))
    size = os.fstat(file.fileno()).st_size
    if size > SMALL:
        return file, size
    with file:
        content = file.read(size)
    return io.BytesIO(content), len(content)


class _Hashed:
    """A file of which the bytes that are read are hashed."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.sha = file, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.sha.update(data)
        return data


def _write_archive(file: Path, files: dict[str, tuple[IO[bytes], int]]) -> None:
    part = file.with_name(file.name + ".part")
    try:
        # The audit log's signing key and client states are inside.
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
            with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as archive:
                hashes = {name: _add(archive, name, *source) for name, source in files.items()}
                manifest = json.dumps(hashes, indent=1).encode()
                _add(archive, MANIFEST, io.BytesIO(manifest), len(manifest))
            target.flush()
            os.fsync(target.fileno())
        os.replace(part, file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{file}: cannot be written ({error.strerror or error})") from None


def _add(archive: tarfile.TarFile, name: str, source: IO[bytes], size: int) -> str:
    """Write one file, and return its hash; it is an OSError if the file has become shorter."""
    member, hashed = tarfile.TarInfo(name), _Hashed(source)
    member.size, member.mode = size, 0o600
    archive.addfile(member, cast("IO[bytes]", hashed))
    return hashed.sha.hexdigest()


def _check_archive(file: Path) -> int:
    """Compare every file with the manifest; returns their number."""
    found: dict[str, str] = {}
    manifest = None
    try:
        with tarfile.open(file, "r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                path = Path(member.name)
                if content is None or path.is_absolute() or ".." in path.parts:
                    raise InputError(f"{file}: '{member.name}' does not belong into a backup")
                if member.name == MANIFEST:
                    manifest = json.load(content)
                else:
                    found[member.name] = hashlib.file_digest(cast("io.BufferedReader", content), "sha256").hexdigest()
    except InputError:
        raise
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError):
        raise InputError(f"{file}: not a complete backup of fedspecial") from None
    if not isinstance(manifest, dict):
        raise InputError(f"{file}: not a complete backup of fedspecial")
    for name in sorted({*manifest, *found}):
        if name not in found or found[name] != manifest.get(name):
            raise InputError(f"{file}: '{name}' is missing or was changed; nothing was restored")
    return len(found)


def _write(path: Path, content: IO[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as target:
        shutil.copyfileobj(content, target)
        target.flush()
        os.fsync(target.fileno())
