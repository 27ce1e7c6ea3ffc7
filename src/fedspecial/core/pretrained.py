"""Pretrained models by name, through `transformers`, which is an optional extra.

A name is a folder, an installed package that carries such a folder, or a model of the Hugging Face hub. The network
is used only for the last, and only for files that are not in the hub's cache yet. Weights are read from safetensors
alone, and no code that comes with a model is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from fedspecial.errors import InputError

_HUB = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def load(kind: str, name: str, setting: str, **options: Any) -> Any:
    """What `transformers.<kind>.from_pretrained` gives, for example of kind "AutoTokenizer".

    setting: the setting in which the user gave the name, for messages
    """
    try:
        import transformers
    except ImportError:
        raise InputError(f"{setting}={name}: needs the extra 'text' (pip install 'fedspecial[text]')") from None
    folder = find(name, setting)
    read = getattr(transformers, kind).from_pretrained
    options = {"trust_remote_code": False, **options}
    with _quiet(transformers):
        try:
            return read(str(folder or name), local_files_only=True, **options)
        except (OSError, ValueError) as error:
            if folder is not None:
                raise InputError(
                    f"{setting}={name}: {kind} finds nothing usable in {folder} ({_line(error)})"
                ) from None
        try:
            return read(name, **options)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{setting}={name}: neither a folder nor an installed package with a model in it, "
                f"and the hub gave none ({_line(error)})"
            ) from None


def find(name: str, setting: str) -> Path | None:
    """The model's folder on this machine; None for what only the hub can know."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"{setting}={name}: no config.json in that folder, so it holds no pretrained model")
        return folder
    if not _HUB.fullmatch(name):
        raise InputError(f"{setting}={name}: there is no such folder")
    return None if "/" in name else _packaged(name)


def _packaged(name: str) -> Path | None:
    """The folder with config.json and its weights inside an installed package; the package isn't imported."""
    try:
        files = metadata.files(name) or []
    except (metadata.PackageNotFoundError, ValueError):
        return None
    weights = {file.parent for file in files if file.name.startswith("model") and file.suffix == ".safetensors"}
    folders = sorted(file.parent for file in files if file.name == "config.json" and file.parent in weights)
    located = [Path(str(file.locate())) for file in files if file.name == "config.json" and file.parent in folders[:1]]
    return located[0].parent if located else None


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without bars and hints of its own on the user's terminal."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
