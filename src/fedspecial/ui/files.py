"""Reading files of a folder that may come from a stranger: regular files inside it only, never more than a limit."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from fedspecial.core.yaml_text import RefusedYAMLError, load_yaml

MAX_JSON = 8 << 20
"""Larger JSON and YAML files are not read; those of a run have some kilobytes."""
MAX_TEXT = 400


class UnreadableFileError(Exception):
    """A file that is not shown. The message says why, without the file's name."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with which file, as the page shows it."""

    file: str
    text: str

    def to_json(self) -> dict[str, str]:
        return {"file": self.file, "text": self.text}


def open_regular(root: Path, path: Path) -> BinaryIO:
    """Open a regular file below `root`, which is resolved; symbolic links, devices and pipes are refused."""
    folder, name = os.path.split(path)
    folder = os.path.realpath(folder)
    if folder != str(root) and not folder.startswith(os.path.join(root, "")):
        raise UnreadableFileError("it is outside the folder that this page shows")
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if os.path.islink(os.path.join(folder, name)):
            raise UnreadableFileError("it is a symbolic link, which this page does not follow")
        descriptor = os.open(os.path.join(folder, name), flags)
    except OSError as error:
        raise UnreadableFileError(f"it cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableFileError("it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_limited(root: Path, path: Path) -> bytes:
    with open_regular(root, path) as file:
        data = file.read(MAX_JSON + 1)
    if len(data) > MAX_JSON:
        raise UnreadableFileError(f"it is larger than {MAX_JSON >> 20} MB, so it is not read")
    return data


def read_json_object(root: Path, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_limited(root, path))
    except (ValueError, RecursionError):
        raise UnreadableFileError("it is cut off or not JSON") from None
    if not isinstance(found, dict):
        raise UnreadableFileError("it is not a JSON object")
    return found


def read_yaml_object(root: Path, path: Path) -> dict[str, Any]:
    data = read_limited(root, path)
    try:
        found = load_yaml(data, aliases=False)
    except RefusedYAMLError as error:
        raise UnreadableFileError(f"it is not a file of a run ({error})") from None
    except yaml.YAMLError:
        raise UnreadableFileError("it is cut off or not YAML") from None
    if not isinstance(found, dict):
        raise UnreadableFileError("it contains no settings")
    return {str(key): value for key, value in found.items()}


def text_of(value: Any) -> str:
    """Any value as a text of limited length."""
    try:
        text = value if isinstance(value, str) else "–" if value is None else str(value)
    except ValueError:  # Python refuses to write out a whole number of thousands of digits
        text = "a number that is too long to be shown"
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def finite(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if type(value) is not float and type(value) is not int:
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def number_of(value: Any) -> float | None:
    """A finite number with six digits, or None for anything else."""
    found = finite(value)
    return None if found is None else float(f"{found:.6g}")


def whole_of(value: Any) -> int | None:
    """A whole number that a browser can represent, or None for anything else."""
    return value if type(value) is int and abs(value) < 2**53 else None


def count_of(value: Any, limit: int = 10**9) -> int:
    """A whole number from 0 to the limit; anything else is a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
        raise ValueError(f"{text_of(value)} is not a number from 0 to {limit}")
    return value
