"""Builds `RoundConfig` and `Constants` from the settings in a file and on the command line.

Accepted are settings of a run (``clients``, ``clients_per_round``, ``rounds``, ``local_steps`` or
``local_epochs``, ``client_lr``, ``server_lr``, ``lam``, ``task``) and the constants of the problem. Other
settings of a configuration file are ignored. A setting that is not given is unknown: its field contains the
placeholder 1, and ``missing`` contains its name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedspecial.errors import did_you_mean
from fedspecial.theory.constants import Constants, RoundConfig, local_steps

CONSTANTS = tuple(field.name for field in fields(Constants))
ROUND = (
    "clients", "clients_per_round", "rounds", "local_steps", "local_epochs", "samples_per_client", "batch_size",
    "client_lr", "server_lr", "lam", "task", "num_tasks", "anchor_first_task", "optimizer", "momentum",
)  # fmt: skip
KEYS = (*ROUND, *CONSTANTS)
_USER_NAMES = {"num_clients": "clients", "task_index": "task"}


@dataclass(frozen=True)
class TheoryInputs:
    """The two inputs of every bound, the fields whose values are placeholders, and notes for the user."""

    cfg: RoundConfig
    consts: Constants
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def parse_overrides(pairs: Sequence[str]) -> dict[str, str]:
    """Parse ``key=value`` arguments. The error for an unknown key suggests the closest known one."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark or not value:
            raise ValueError(f"{pair!r} must be written as key=value")
        if key not in KEYS:
            raise ValueError(f"unknown setting or constant {key}{did_you_mean(key, KEYS)}, got {pair!r}")
        found[key] = value
    return found


def setting_name(field: str) -> str:
    """The name under which a user sets a field."""
    return _USER_NAMES.get(field, field)


def read_inputs(settings: Mapping[str, Any]) -> TheoryInputs:
    """The inputs of the bounds. A setting that is None or absent is unknown."""
    known = {key: value for key, value in settings.items() if key in KEYS and value is not None}
    task = _count(known, "task") or _count(known, "num_tasks")
    steps, notes = _steps(known)
    given: dict[str, Any] = {
        "num_clients": _count(known, "clients"),
        "clients_per_round": _count(known, "clients_per_round"),
        "local_steps": steps,
        "rounds": _count(known, "rounds"),
        "task_index": task,
        "server_lr": _server_lr(known, task),
        "client_lr": _number(known, "client_lr"),
        "lam": _number(known, "lam"),
    }
    missing = [name for name, value in given.items() if value is None]
    # A missing one takes the value of the other, so that N <= M always holds.
    here, chosen = given["num_clients"], given["clients_per_round"]
    given["num_clients"], given["clients_per_round"] = here or chosen or 1, chosen or here or 1
    filled = {name: 1 if value is None else value for name, value in given.items()}
    anchored = task is None or task > 1 or _truth(known, "anchor_first_task")
    constants = {name: _number(known, name) for name in CONSTANTS}
    absent = [name for name in ("grad_bound", "smoothness") if constants[name] is None]
    needed: dict[str, Any] = {**constants, **dict.fromkeys(absent, 1.0)}
    cfg = RoundConfig(**filled, anchored=anchored)
    notes += _notes(known, anchored)
    return TheoryInputs(cfg, Constants(**needed), (*missing, *absent), tuple(notes))


def _steps(known: Mapping[str, Any]) -> tuple[int | None, list[str]]:
    """E from ``local_steps``, or from epochs, samples and batch size; epochs alone are not enough."""
    if "local_steps" in known:
        return _count(known, "local_steps"), []
    epochs, samples = _number(known, "local_epochs"), _count(known, "samples_per_client")
    batch = _count(known, "batch_size")
    if epochs is None or samples is None or batch is None:
        hint = "local_steps is unknown: set it, or set samples_per_client, batch_size and local_epochs"
        return None, [hint]
    if epochs <= 0:
        raise ValueError(f"local_epochs must be above 0, got {epochs!r}")
    steps = math.ceil(epochs * local_steps(samples, batch, 1) - 1e-9)  # a fraction of an epoch as in training
    return steps, [f"local_steps = {steps}, from {samples} samples in batches of {batch}, {epochs:g} epochs"]


def _server_lr(known: Mapping[str, Any], task: int | None) -> float | None:
    if str(known.get("server_lr", "")).replace(" ", "") == "1/i":
        return None if task is None else 1 / task
    return _number(known, "server_lr")


def _notes(known: Mapping[str, Any], anchored: bool) -> list[str]:
    notes = []
    plain = str(known.get("optimizer", "sgd")) == "sgd" and not _number(known, "momentum")
    if not plain:
        notes.append("the statements assume plain SGD; for this optimizer only the bounds computed from deltas hold")
    if not anchored:
        notes.append("the first task has no anchor, so lam has no effect (unless anchor_first_task=true)")
    return notes


def _number(known: Mapping[str, Any], name: str) -> float | None:
    if name not in known:
        return None
    try:
        return float(known[name])
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {known[name]!r}") from None


def _count(known: Mapping[str, Any], name: str) -> int | None:
    number = _number(known, name)
    if number is None:
        return None
    if not number.is_integer() or number < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {known[name]!r}")
    return int(number)


def _truth(known: Mapping[str, Any], name: str) -> bool:
    return str(known.get(name, False)).lower() in ("true", "yes", "1")
