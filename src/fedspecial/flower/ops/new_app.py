"""`fedspecial flower init`: create a Flower app from a template. Needs neither Flower nor torch."""

from __future__ import annotations

import json
import os
import re
from importlib import resources
from pathlib import Path
from string import Template

from fedspecial import __version__
from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.flower.governance.policy import RoundPolicy

# Tools would mistake a second pyproject.toml in our source tree for a project of its own.
FILES = {
    "pyproject.toml": "pyproject.toml.template",
    "server_app.py": "server_app.py",
    "client_app.py": "client_app.py",
    "README.md": "README.md",
    **{
        f"deploy/{file}": f"deploy/{file}"
        for file in (
            "fedspecial-superlink.service",
            "fedspecial-supernode@.service",
            "nginx.conf",
            "chrony.conf",
            "compose.yaml",
        )
    },
}
HEARTBEAT_SECONDS = 60
"""How long a SuperNode that was killed counts as connected: two of Flower's heartbeat intervals."""
RESTART_SECONDS = HEARTBEAT_SECONDS + 5


def write_app(folder: Path) -> list[Path]:
    """Write the app into a new or empty folder; existing files are never changed."""
    name = folder.absolute().name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", name):
        raise InputError(
            f"init {folder}: the folder name is also the name of the Flower app, so '{name}' must start with a letter, "
            "contain only letters, digits and hyphens, and have at most 32 characters"
        )
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"init {folder}: it exists and is not an empty folder; nothing was changed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, source in FILES.items():
            (folder / file).parent.mkdir(exist_ok=True)
            write_atomic(folder / file, _fill_in(source, name).encode())
    except OSError as error:
        raise InputError(f"init {folder}: cannot be written ({error.strerror})") from None
    return [folder / file for file in FILES]


def _fill_in(source: str, name: str) -> str:
    text = resources.files("fedspecial.flower.ops").joinpath("template", source).read_text(encoding="utf-8")
    policy = "\n".join(f"{key} = {json.dumps(value)}" for key, value in RoundPolicy().settings().items())
    times = {"heartbeat": HEARTBEAT_SECONDS, "restart": RESTART_SECONDS}
    return Template(text).substitute(name=name, policy=policy, version=__version__, **times)
