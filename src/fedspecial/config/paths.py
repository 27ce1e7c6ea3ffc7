"""Paths in settings are stored absolute, so that a run can be evaluated, resumed and repeated from another folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedspecial.config.values import Settings

FILES = ("data", "weights")
"""Settings that are always a path."""
NAMES_OR_FOLDERS = ("encoder", "tokenizer")
"""Settings that may be a folder, or the name of something that is installed or on a hub."""
OBJECTS = ("benchmark", "model", "method", "objective")
"""Settings that may be ``file.py:Name``."""


def absolute_paths(settings: Mapping[str, Any], base: Path | None = None) -> Settings:
    """The settings with absolute paths. What does not exist stays as it is, for the error message to come.

    base: the folder that relative paths start from; the current one if it is None
    """
    base = Path.cwd() if base is None else base.absolute()
    found = dict(settings)
    for key in (*FILES, *NAMES_OR_FOLDERS):
        if isinstance(found.get(key), str):
            found[key] = _absolute(found[key], base)
    if str(found.get("latency", "")).endswith(".csv"):  # otherwise the name of a distribution
        found["latency"] = _absolute(found["latency"], base)
    for key in OBJECTS:
        file, colon, name = str(found.get(key, "")).rpartition(":")
        if isinstance(found.get(key), str) and colon and file.endswith(".py"):
            found[key] = f"{_absolute(file, base)}:{name}"
    if isinstance(found.get("options"), Mapping):
        found["options"] = absolute_paths(found["options"], base)
    return found


def short_name(value: object) -> str:
    """A setting's value for a heading or a folder's name: of ``/home/me/file.py:Name`` only ``file.py:Name``."""
    text = str(value)
    return Path(text).name if ".py:" in text else text


def _absolute(path: str, base: Path) -> str:
    there = base / os.path.expanduser(path)  # not every shell expands the ~ in data=~/images, and YAML does not
    return str(there) if path and there.exists() else path
