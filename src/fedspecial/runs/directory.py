"""The run directory: made before anything slow begins, finished when result.json stands in it. Needs no torch."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedspecial.config import Settings, read_settings
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.report.result import Result

RUNS = Path("runs")


def create(settings: Settings) -> Path:
    """A new directory with the words of the run in it; one that exists is never touched."""
    out = settings.get("out")
    while True:
        folder = Path(out) if out else next_number(f"{settings.get('benchmark', 'run')}-{settings.get('method', '')}")
        settings["out"] = str(folder)
        if _appears(folder, settings):
            return folder
        if out:
            raise InputError(f"out={folder}: it exists already; nothing was changed (resume it, or name another)")


def _appears(folder: Path, settings: Settings) -> bool:
    """Whether the directory could be made; it appears with the words in it, so a kill leaves no empty one."""
    if os.path.lexists(folder):
        return False
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        write_settings(part, settings)
        part.rename(folder)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and folder.exists():
            return False
        raise InputError(f"out={folder}: cannot be made ({error.strerror})") from None
    return True


def write_settings(folder: Path, settings: Settings, about: dict[str, Any] | None = None) -> None:
    """With `about` the words are final: they are sealed, and a change is noticed when the run goes on."""
    content = {**settings, **({"about": {**about, "settings_sha256": _seal(settings)}} if about else {})}
    part = folder / "config.yaml.part"
    with part.open("w", encoding="utf-8") as file:
        yaml.safe_dump(_plain(content), file, sort_keys=False, allow_unicode=True)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, folder / "config.yaml")


def settings(folder: Path) -> Settings:
    if not (folder / "config.yaml").exists():
        raise InputError(f"{folder}: this is not a run directory (it has no config.yaml)")
    found = read_settings(folder / "config.yaml")
    about = found.pop("about", None)
    if isinstance(about, dict) and about.get("settings_sha256", _seal(found)) != _seal(found):
        raise InputError(
            f"{folder / 'config.yaml'}: it was changed after the run began; put it back, or run it as another run"
        )
    return found


def about(folder: Path) -> dict[str, Any]:
    """Versions and the hash of the data, as written when the run began."""
    return dict(read_settings(folder / "config.yaml").get("about") or {})


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Work on a run, alone: the claim ends with the process, however it ends."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another process is working on this run") from None
        except OSError:
            pass  # some network file systems know no locks
        yield
    finally:
        os.close(descriptor)


def finished(folder: Path) -> Result | None:
    """The result of a finished run, or None."""
    settings(folder)
    path = folder / "result.json"
    if not path.exists():
        return None
    from fedspecial.report.result import Result

    try:
        return Result(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise InputError(f"{path}: it was cut off or changed; remove it and resume the run to have it again") from None


@contextmanager
def created(settings: Settings) -> Iterator[Path]:
    """A new run directory, taken back if the run is refused before anything but its words stands there."""
    folder = create(settings)
    try:
        yield folder
    except InputError:
        if {path.name for path in folder.iterdir()} <= {"config.yaml"}:
            (folder / "config.yaml").unlink(missing_ok=True)
            folder.rmdir()
        raise


def next_number(stem: str) -> Path:
    """The first free ``runs/STEM-001``, ``-002``, …"""
    stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)
    numbers = [int(p.name.rpartition("-")[2]) for p in RUNS.glob(f"{stem}-*") if p.name.rpartition("-")[2].isdigit()]
    return RUNS / f"{stem}-{max(numbers, default=0) + 1:03d}"


def _seal(settings: Settings) -> str:
    """Hash of the words; the place does not count, since a finished run may be moved."""
    text = yaml.safe_dump({key: _plain(value) for key, value in settings.items() if key != "out"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value
