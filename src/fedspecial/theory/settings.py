"""From the words of a file and a command line to `RoundConfig` and `Constants`, with what is missing named.

The words are those of a run (``clients``, ``clients_per_round``, ``rounds``, ``local_steps`` or
``local_epochs``, ``client_lr``, ``server_lr``, ``lam``, ``task``) and the constants; other words of a run's
file are passed over. A word that is absent stays unknown: its place is held by 1 and its name stands in
``missing``.
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
WORDS = (*ROUND, *CONSTANTS)
_USER_NAMES = {"num_clients": "clients", "task_index": "task"}


@dataclass(frozen=True)
class Settings:
    """The two inputs of every bound, the fields whose values are placeholders, and remarks for the reader."""

    cfg: RoundConfig
    consts: Constants
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def parse_overrides(pairs: Sequence[str]) -> dict[str, str]:
    """``key=value`` words; an unknown key is refused with the nearest known one."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark or not value:
            raise ValueError(f"{pair!r} must be written as key=value")
        if key not in WORDS:
            raise ValueError(f"{key} is not a word of the theory{did_you_mean(key, WORDS)}, got {pair!r}")
        found[key] = value
    return found


def user_name(field: str) -> str:
    """The word a user writes for a field."""
    return _USER_NAMES.get(field, field)


def settle(words: Mapping[str, Any]) -> Settings:
    """The inputs of the bounds from words, where None or absence is unknown."""
    known = {key: value for key, value in words.items() if key in WORDS and value is not None}
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
    # One of the two stands in for the other, so that N <= M whatever is missing.
    here, chosen = given["num_clients"], given["clients_per_round"]
    given["num_clients"], given["clients_per_round"] = here or chosen or 1, chosen or here or 1
    filled = {name: 1 if value is None else value for name, value in given.items()}
    anchored = task is None or task > 1 or _truth(known, "anchor_first_task")
    constants = {name: _number(known, name) for name in CONSTANTS}
    absent = [name for name in ("grad_bound", "smoothness") if constants[name] is None]
    needed: dict[str, Any] = {**constants, **dict.fromkeys(absent, 1.0)}
    cfg = RoundConfig(**filled, anchored=anchored)
    notes += _remarks(known, anchored)
    return Settings(cfg, Constants(**needed), (*missing, *absent), tuple(notes))


def _steps(known: Mapping[str, Any]) -> tuple[int | None, list[str]]:
    """E from ``local_steps``, or from epochs, samples and batch; epochs alone do not tell."""
    if "local_steps" in known:
        return _count(known, "local_steps"), []
    epochs, samples = _number(known, "local_epochs"), _count(known, "samples_per_client")
    batch = _count(known, "batch_size")
    if epochs is None or samples is None or batch is None:
        hint = "local_steps is unknown: give it, or samples_per_client with batch_size and local_epochs"
        return None, [hint]
    if epochs <= 0:
        raise ValueError(f"local_epochs must be above 0, got {epochs!r}")
    steps = math.ceil(epochs * local_steps(samples, batch, 1))
    return steps, [f"local_steps = {steps}, from {samples} samples in batches of {batch}, {epochs:g} epochs"]


def _server_lr(known: Mapping[str, Any], task: int | None) -> float | None:
    if str(known.get("server_lr", "")).replace(" ", "") == "1/i":
        return None if task is None else 1 / task
    return _number(known, "server_lr")


def _remarks(known: Mapping[str, Any], anchored: bool) -> list[str]:
    notes = []
    plain = str(known.get("optimizer", "sgd")) == "sgd" and not _number(known, "momentum")
    if not plain:
        notes.append("the statements are about plain SGD; of this run's optimizer only the caps from deltas hold")
    if not anchored:
        notes.append("the first task has no anchor: lam does not act in it (anchor_first_task=true if it does)")
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
        raise ValueError(f"{name} must be a whole number of at least 1, got {known[name]!r}")
    return int(number)


def _truth(known: Mapping[str, Any], name: str) -> bool:
    return str(known.get(name, False)).lower() in ("true", "yes", "1")
