"""User code named on the command line or in a YAML file: ``path/to/file.py:Name`` or ``package.module:Name``.

Methods, models and benchmarks are all found this way, so all of them report a missing file or a missing name alike.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from fedspecial.errors import InputError, did_you_mean


def is_object_name(spec: str) -> bool:
    """Whether `spec` names an object in a file or module, and not a built-in by its name."""
    return ":" in spec


def load_object(spec: str, what: str) -> Any:
    """The object that ``file.py:Name`` or ``package.module:Name`` names.

    A file is executed at every call, so edits take effect without a new process.

    spec: file or module, a colon and the name of a class or function in it
    what: the setting that `spec` is the value of, such as "method"; it starts every error message
    """
    source, colon, name = spec.rpartition(":")
    if not (colon and source and name):
        raise InputError(f"{what}='{spec}': write file.py:Name or package.module:Name")
    try:
        module = _execute_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except Exception as error:  # user code can raise anything while it is imported
        raise InputError(f"{what}='{spec}': cannot be imported ({describe_error(error)})") from error
    if not hasattr(module, name):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise InputError(f"{what}='{spec}': there is no '{name}' in {source}{did_you_mean(name, public)}")
    return getattr(module, name)


def describe_error(error: BaseException) -> str:
    """An exception of user code in one line: its type, its message, and the file and line that raised it."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ImportError | SyntaxError) or not frames:
        return text
    return f"{text}, {Path(frames[-1].filename).name} line {frames[-1].lineno}"


def _execute_file(path: Path) -> ModuleType:
    # Two files with the same name in different folders must not replace each other in sys.modules.
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    module_name = f"fedspecial_user_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module by name while the class is created.
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module
