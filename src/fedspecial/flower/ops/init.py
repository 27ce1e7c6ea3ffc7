"""`fedspecial flower init`: a Flower app to start from. Needs neither Flower nor torch."""

from __future__ import annotations

import json
import os
import re
from importlib import resources
from pathlib import Path
from string import Template

from fedspecial.errors import InputError
from fedspecial.flower.governance.policy import Policy

# A second pyproject.toml among our own sources would be taken for a project's.
FILES = {
    "pyproject.toml": "pyproject.toml.template",
    "server_app.py": "server_app.py",
    "client_app.py": "client_app.py",
    "README.md": "README.md",
}


def write_app(folder: Path) -> list[Path]:
    """The files of the app, in a new or empty folder; nothing that exists is touched."""
    name = folder.absolute().name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", name):
        raise InputError(
            f"init {folder}: Flower names the app after its folder, so '{name}' must be made of letters, digits and "
            "hyphens, start with a letter and have at most 32"
        )
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"init {folder}: it exists already and is not an empty folder; nothing was changed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, source in FILES.items():
            (folder / file).write_text(_filled(source, name), encoding="utf-8")
    except OSError as error:
        raise InputError(f"init {folder}: cannot be written ({error.strerror})") from None
    return [folder / file for file in FILES]


def _filled(source: str, name: str) -> str:
    text = resources.files("fedspecial.flower.ops").joinpath("template", source).read_text(encoding="utf-8")
    policy = "\n".join(f"{word} = {json.dumps(value)}" for word, value in Policy().as_words().items())
    return Template(text).substitute(name=name, policy=policy)
