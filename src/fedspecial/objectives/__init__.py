"""The objectives by name. One of your own is an `Objective` in a file: ``objective=my_objective.py:NAME``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fedspecial.core.imports import is_object_name, load_object
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.objectives.base import Objective

# Name → what it is in one line; an objective is imported when it is first used.
_DESCRIPTIONS = {
    "classification": "one class per sample: cross-entropy, accuracy",
    "multilabel": "several labels per sample: binary cross-entropy, macro AUROC",
    "regression": "real numbers: mean squared error, R²",
    "segmentation": "one class per pixel: cross-entropy, mean intersection over union",
}


def names() -> list[str]:
    return list(_DESCRIPTIONS)


def describe(name: str) -> str:
    return _DESCRIPTIONS[name]


def check_name(name: str) -> None:
    """Refuse an unknown objective without importing any."""
    if name not in _DESCRIPTIONS and not is_object_name(name):
        hint = did_you_mean(name, names())
        raise InputError(f"objective='{name}': there is no such objective{hint}; known: {', '.join(names())}")


def find(name: str) -> Objective:
    """The objective of that name, or that of ``path/to/file.py:NAME`` / ``package.module:NAME``."""
    from fedspecial.objectives.base import Objective

    check_name(name)
    if name in _DESCRIPTIONS:
        return getattr(importlib.import_module(f"fedspecial.objectives.{name}"), name.upper())  # type: ignore[no-any-return]
    found = load_object(name, "objective")
    if not isinstance(found, Objective):
        source, _, own = name.rpartition(":")
        raise InputError(f"objective='{name}': '{own}' in {source} is not an Objective")
    return found
