"""Backups of a federation's state: the run directory of the server, or the state folder of a site. Needs no torch.

A backup is one .tar.gz file with all files of the folder and `manifest.json`, which has the SHA-256 of each. It can be
taken while the run works: the copy is repeated if a checkpoint was written in the meantime. A restored server continues
bit for bit if the sites still have the client states of its checkpoint; they keep those of the last two.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import zlib
from pathlib import Path

from fedspecial.errors import InputError

MANIFEST = "manifest.json"
ATTEMPTS = 10
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
        before = _position(folder)
        try:
            files = {name: (folder / name).read_bytes() for name in _names(folder)}
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
    files = _read_archive(file)
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        for name, data in files.items():
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
                target.write(data)
                target.flush()
                os.fsync(target.fileno())
        part.rename(folder)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
    return len(files)


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


def _write_archive(file: Path, files: dict[str, bytes]) -> None:
    manifest = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    part = file.with_name(file.name + ".part")
    try:
        # The audit log's signing key and client states are inside.
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
            with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as archive:
                for name, data in {MANIFEST: json.dumps(manifest, indent=1).encode(), **files}.items():
                    member = tarfile.TarInfo(name)
                    member.size, member.mode = len(data), 0o600
                    archive.addfile(member, io.BytesIO(data))
            target.flush()
            os.fsync(target.fileno())
        os.replace(part, file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{file}: cannot be written ({error.strerror})") from None


def _read_archive(file: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(file, "r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                path = Path(member.name)
                if content is None or path.is_absolute() or ".." in path.parts:
                    raise InputError(f"{file}: '{member.name}' does not belong into a backup")
                files[member.name] = content.read()
        manifest = json.loads(files.pop(MANIFEST))
    except InputError:
        raise
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, KeyError):
        raise InputError(f"{file}: not a complete backup of fedspecial") from None
    for name in sorted({*manifest, *files}):
        if name not in files or hashlib.sha256(files[name]).hexdigest() != manifest.get(name):
            raise InputError(f"{file}: '{name}' is missing or was changed; nothing was restored")
    return files
