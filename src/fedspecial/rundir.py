"""The run directory: made before anything slow begins, finished when result.json stands in it. Needs no torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedspecial.config import Words, read_words
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.report.result import Result

RUNS = Path("runs")


def create(words: Words) -> Path:
    """A new directory with the words of the run in it; one that exists is never touched."""
    out = words.get("out")
    folder = Path(out) if out else next_number(f"{words.get('benchmark', 'run')}-{words.get('method', '')}")
    words["out"] = str(folder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InputError(f"out={folder}: it exists already; nothing was changed (resume it, or name another)") from None
    except OSError as error:
        raise InputError(f"out={folder}: cannot be made ({error.strerror})") from None
    write_words(folder, words)
    return folder


def write_words(folder: Path, words: Words, about: dict[str, Any] | None = None) -> None:
    content = {**words, **({"about": about} if about else {})}
    part = folder / "config.yaml.part"
    with part.open("w", encoding="utf-8") as file:
        yaml.safe_dump(_plain(content), file, sort_keys=False, allow_unicode=True)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, folder / "config.yaml")


def words(folder: Path) -> Words:
    if not (folder / "config.yaml").exists():
        raise InputError(f"{folder}: this is not a run directory (it has no config.yaml)")
    found = read_words(folder / "config.yaml")
    found.pop("about", None)
    return found


def finished(folder: Path) -> Result | None:
    """The result of a finished run, or None."""
    words(folder)
    path = folder / "result.json"
    if not path.exists():
        return None
    from fedspecial.report.result import Result

    return Result(**json.loads(path.read_text(encoding="utf-8")))


def drop_if_untouched(folder: Path) -> None:
    """Take back a directory that holds nothing but the words of a run that could not begin."""
    if {path.name for path in folder.iterdir()} <= {"config.yaml"}:
        (folder / "config.yaml").unlink(missing_ok=True)
        folder.rmdir()


def next_number(stem: str) -> Path:
    """The first free ``runs/STEM-001``, ``-002``, …"""
    stem = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem)
    numbers = [int(p.name.rpartition("-")[2]) for p in RUNS.glob(f"{stem}-*") if p.name.rpartition("-")[2].isdigit()]
    return RUNS / f"{stem}-{max(numbers, default=0) + 1:03d}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value
