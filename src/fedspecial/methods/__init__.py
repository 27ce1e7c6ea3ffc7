"""The methods by name. A method of your own is one class in one file: ``method=my_method.py:MyMethod``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedspecial.core.imports import load_object
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.methods.base import Method

# Name → where it is and what it does in one line; a method is imported when it is first used.
_BUILT_IN = {
    "fedavg": ("fedavg:FedAvg", "average the clients; the baseline"),
    "fedprox": ("fedprox:FedProx", "clients stay close to the model of this round"),
    "fedcil": ("fedcil:FedCil", "clients replay images of a GAN that clients and server train together"),
    "mfcl": ("mfcl:Mfcl", "clients replay images of a generator that the server trains from the model, without data"),
    "srfdil": ("srfdil:SrFdil", "clients replay a few stored samples, chosen by local and global scores"),
    "pfeddil": ("pfeddil:PFedDil", "a few models per client, mixed by how familiar a sample is to each"),
    "flwf2t": ("flwf2t:FLwF2T", "clients distil from the global model and from their own past model"),
    "special-c": ("special_c:SpecialC", "clients are pulled towards the previous task's model"),
    "special": ("special:Special", "the server pulls towards the previous task's model"),
    "special-plus": (
        "special_plus:SpecialPlus",
        "each weight is pulled as strongly as it matters, and the BatchNorm statistics of each task are kept",
    ),
    "joint": ("joint:Joint", "reference: FedAvg on the data of all domains at once; the upper bound"),
    "local": ("local:Local", "reference: every client trains alone, without a federation"),
}


_RUN_DEFAULTS: dict[str, dict[str, Any]] = {"special-plus": {"batch_norm": "bank", "server_lr": 1.0}}


def run_defaults(name: str) -> dict[str, Any]:
    """Settings of a run for which a method has another default; the user's win. Here, so that torch is not needed."""
    return dict(_RUN_DEFAULTS.get(name, {}))


def names() -> list[str]:
    return list(_BUILT_IN)


def names_for(kind: str) -> list[str]:
    """The methods that work on such data: "image", "table" or "text"."""
    return [name for name in _BUILT_IN if kind in find(name).kinds]


def describe(name: str) -> str:
    return _BUILT_IN[name][1]


def check_name(name: str) -> None:
    """Refuse an unknown method without importing any."""
    if name not in _BUILT_IN and ":" not in name:
        if name.endswith(".py"):
            raise InputError(f"method='{name}': say which class of the file it is: method={name}:Class")
        known = ", ".join(_BUILT_IN)
        raise InputError(f"method='{name}': there is no such method{did_you_mean(name, _BUILT_IN)}; known: {known}")


def find(name: str) -> type[Method]:
    """The class of a method: a built-in name, or ``path/to/file.py:Class`` / ``package.module:Class``."""
    check_name(name)
    if name in _BUILT_IN:
        module_name, class_name = _BUILT_IN[name][0].split(":")
        return getattr(importlib.import_module(f"fedspecial.methods.{module_name}"), class_name)  # type: ignore[no-any-return]
    return _find_own(name)


def _find_own(name: str) -> type[Method]:
    from fedspecial.methods.base import Method

    found = load_object(name, "method")
    if not (isinstance(found, type) and issubclass(found, Method)):
        source, _, class_name = name.rpartition(":")
        raise InputError(f"method='{name}': '{class_name}' in {source} is not a Method")
    return found
