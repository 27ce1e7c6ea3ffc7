"""The checkpoint of a `SpecialStrategy`: one safetensors file with JSON metadata, no pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as write_safetensors

from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.flower.strategy.strategy import SpecialStrategy

_FORMAT = 2


def save(strategy: SpecialStrategy, path: Path) -> None:
    tensors = {f"theta/{name}": value for name, value in strategy.theta.items()}
    tensors |= {f"anchor/{name}": value for name, value in (strategy.anchor or {}).items()}
    accountant = _accountant(strategy)
    state = {
        "format": _FORMAT,
        "task": strategy.task,
        "rounds_done": strategy.rounds_done,
        "lam": strategy.lam,
        "server_lr": strategy.server_lr,
        "rounds_per_task": strategy.rounds_per_task,
        "names": list(strategy.theta),
        "has_anchor": strategy.anchor is not None,
        "set_anchor_next_round": strategy._set_anchor_next_round,
        "accountant": None if accountant is None else accountant.state_dict(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, write_safetensors(tensors, {"fedspecial": json.dumps(state)}))


def load(strategy: SpecialStrategy, path: Path) -> None:
    try:
        with safe_open(path, framework="numpy") as file:
            state = json.loads((file.metadata() or {})["fedspecial"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        format = state["format"]
    except FileNotFoundError:
        raise InputError(f"checkpoint={path}: the file does not exist") from None
    except (SafetensorError, KeyError, TypeError, ValueError):
        raise InputError(
            f"checkpoint={path}: the file is truncated, or is not a checkpoint of SpecialStrategy"
        ) from None
    if format != _FORMAT:
        raise InputError(
            f"checkpoint={path}: it has format {format}; this version of fedspecial reads format {_FORMAT}"
        )
    for name in ("lam", "server_lr", "rounds_per_task"):
        if state[name] != getattr(strategy, name):
            raise InputError(f"{name}={getattr(strategy, name)}: the run in {path} has {name}={state[name]}")
    _restore_accountant(strategy, state["accountant"], path)
    strategy.task, strategy.rounds_done = state["task"], state["rounds_done"]
    strategy.theta = {name: tensors[f"theta/{name}"] for name in state["names"]}
    strategy.anchor = {name: tensors[f"anchor/{name}"] for name in state["names"]} if state["has_anchor"] else None
    strategy._set_anchor_next_round = state["set_anchor_next_round"]


def _restore_accountant(strategy: SpecialStrategy, saved: dict[str, Any] | None, path: Path) -> None:
    """Refuse to continue if the privacy budget spent so far would be lost."""
    accountant = _accountant(strategy)
    if (accountant is None) != (saved is None):
        missing = "the strategy has no accountant" if accountant is None else "the saved run had no accountant"
        raise InputError(f"checkpoint={path}: {missing}, so the privacy budget spent so far would be lost")
    if accountant is not None:
        accountant.load_state_dict(saved)


def _accountant(strategy: SpecialStrategy) -> Any:
    from fedspecial.flower.strategy.strategy import wrapped_strategies

    return next(
        (a for part in wrapped_strategies(strategy.inner) if (a := getattr(part, "accountant", None)) is not None), None
    )
