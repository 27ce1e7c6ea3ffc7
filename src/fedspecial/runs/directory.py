"""The run directory: created before anything slow begins; a run is finished when result.json exists. Needs no torch.

config.yaml holds the settings and, under `about`, the version of the directory's format and a hash of the settings,
and later the versions of the software and the hash of each domain's data. The list of domains has a hash of its own,
because a run can be extended by further domains.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedspecial.config import EXECUTION, Settings, is_given_object, read_settings
from fedspecial.config.paths import short_name
from fedspecial.core.files import write_atomic, write_folder_atomic
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.report.result import Result

RUNS = Path("runs")
CONFIG = "config.yaml"
FAILURE = "failure.json"
FORMAT = 3
"""Version of the files in a run directory, which this version of fedspecial writes."""
READABLE = (2, FORMAT)
"""Versions that it reads. Format 2 had one hash of all data, and the hash of its settings included the domains."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""For the file. It breaks some lines differently than `yaml.safe_dump`, which hashes are therefore computed from."""


def create(settings: Settings) -> Path:
    """A new directory that contains the settings of the run; an existing one is never touched."""
    out = settings.get("out")
    while True:
        folder = (
            Path(os.path.expanduser(out))
            if out
            else next_number(f"{_benchmark_name(settings)}-{settings.get('method', '')}")
        )
        settings["out"] = str(folder)
        if _create_at(folder, settings):
            return folder
        if out:
            raise InputError(f"out={folder}: it exists already; nothing was changed (resume it, or name another)")


def _create_at(folder: Path, settings: Settings) -> bool:
    """Whether the directory could be created. It appears together with its settings, so a kill leaves no empty one."""
    if os.path.lexists(folder):
        return False
    try:
        write_folder_atomic(folder, {CONFIG: _config_bytes(settings)})
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and folder.exists():
            return False
        raise InputError(f"out={folder}: cannot be created ({error.strerror})") from None
    return True


def write_settings(folder: Path, settings: Settings, about: dict[str, Any] | None = None) -> None:
    """Write config.yaml with a hash of the settings, so that resuming notices a change."""
    write_atomic(folder / CONFIG, _config_bytes(settings, about))


def _config_bytes(settings: Settings, about: dict[str, Any] | None = None) -> bytes:
    about = {"format": FORMAT, **(about or {}), **_seals(settings, FORMAT)}
    text = yaml.dump(_plain({**settings, "about": about}), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return str(text).encode()


def settings(folder: Path) -> Settings:
    """The settings of a run; a directory that is not one of ours, or of another format, is refused."""
    return _read(folder)[0]


def about(folder: Path) -> dict[str, Any]:
    """The format's version, the versions of the software and the hashes of the data, written when the run began."""
    return _read(folder)[1]


def recorded_domains(folder: Path) -> dict[str, str] | None:
    """The domains of a run in order, each with the hash of its data; None where they are not recorded (yet)."""
    return about(folder).get("data")


def _read(folder: Path) -> tuple[Settings, dict[str, Any]]:
    path = folder / CONFIG
    if not path.exists():
        raise InputError(f"{folder}: this is not a run directory (it has no {CONFIG})")
    found = read_settings(path)
    about = found.pop("about", None)
    version = _format_version(about)
    if version is None:
        raise InputError(
            f"{folder}: this is not a run directory (its {CONFIG} has no about.format); "
            f"to start a run with these settings: fedspecial run {path}"
        )
    if version not in READABLE:
        raise InputError(
            f"{folder}: run directory of format {version}; this version of fedspecial reads the formats "
            f"{' and '.join(map(str, READABLE))} only"
        )
    if any(about.get(name) != value for name, value in _seals(found, version).items()):
        raise InputError(f"{path}: it was changed after the run began; undo the change, or start a new run with it")
    return found, about


def _format_version(about: Any) -> Any:
    if not isinstance(about, dict):
        return None
    # The first format had no version; it recorded its hash under another name.
    return about.get("format", 1 if "words_sha256" in about else None)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Exclusive use of a run directory. The lock is released when the process ends, however it ends."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not _locked(descriptor):
            raise InputError(f"{folder}: another process is working on this run")
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Take the lock. A page that asks whether the run is working holds it for an instant, so it is tried again."""
    import fcntl

    deadline = time.monotonic() + 0.5
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        except OSError:
            return True  # some network file systems do not support locks


@contextmanager
def failure_recorded(folder: Path) -> Iterator[None]:
    """An error that ends the run is written to failure.json, so that it can be told from a run that was stopped.

    The file is removed when the run is continued. Refused input (`InputError`) changes nothing in the directory.
    """
    path = folder / FAILURE
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:2000]
        content = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "message": text}
        with suppress(OSError):  # the error itself matters more than its record
            write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())
        raise
    path.unlink(missing_ok=True)


@contextmanager
def full_disk_refused(folder: Path, then: str) -> Iterator[None]:
    """A full disk becomes one line that says what to do when there is room. then: how to continue the run"""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise InputError(
            f"{folder}: it cannot be written ({error.strerror}); nothing of the last checkpoint is lost: make room and "
            f"{then}"
        ) from None


def finished(folder: Path) -> Result | None:
    """The result of a finished run, or None. A result of fewer domains than the run has by now does not count."""
    names = recorded_domains(folder)
    path = folder / "result.json"
    if not path.exists():
        return None
    from fedspecial.report.result import Result

    try:
        result = Result(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise InputError(f"{path}: it was cut off or changed; remove it and resume the run to write it again") from None
    return result if set(names or ()) <= set(result.tasks) else None


def write_extension(folder: Path, settings: Settings, about: dict[str, Any]) -> None:
    """Record the new domains of a finished run. From the first of the two steps on, the run is not finished."""
    write_settings(folder, settings, about)
    (folder / "result.json").unlink(missing_ok=True)


@contextmanager
def created(settings: Settings) -> Iterator[Path]:
    """A new run directory; it is removed again if the run is refused while it contains nothing but its settings."""
    folder = create(settings)
    try:
        yield folder
    except InputError:
        if {path.name for path in folder.iterdir()} <= {CONFIG}:
            (folder / CONFIG).unlink(missing_ok=True)
            folder.rmdir()
        raise


def next_number(stem: str) -> Path:
    """The first free ``runs/STEM-001``, ``-002``, …"""
    stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)
    numbers = [int(p.name.rpartition("-")[2]) for p in RUNS.glob(f"{stem}-*") if p.name.rpartition("-")[2].isdigit()]
    return RUNS / f"{stem}-{max(numbers, default=0) + 1:03d}"


def _benchmark_name(settings: Settings) -> str:
    name = settings.get("benchmark", "run")
    return short_name(name["object"] if is_given_object(name) else name)


def _seals(settings: Settings, version: int) -> dict[str, str]:
    """Hash of the settings that determine the result: a finished run may be moved, extended, and executed in several
    ways. The list of domains, which an extension changes, has a hash of its own."""
    left_out = {"out", *EXECUTION}
    if version < 3:
        return {"settings_sha256": _sha256({key: settings[key] for key in settings.keys() - left_out})}
    identity = {key: settings[key] for key in sorted(settings.keys() - left_out - {"domains"})}
    return {"settings_sha256": _sha256(identity), "domains_sha256": _sha256({"domains": settings.get("domains")})}


def _sha256(values: Settings) -> str:
    plain = _plain(values)
    return _sha256_of(_Content(repr(plain), plain))


@dataclass(frozen=True)
class _Content:
    """Settings that are compared by their text, in which 1, 1.0 and True differ."""

    text: str
    values: Settings = field(compare=False)


@lru_cache(maxsize=256)
def _sha256_of(content: _Content) -> str:
    """Cached, because a run reads and checks its settings several times."""
    return hashlib.sha256(yaml.safe_dump(content.values, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value
