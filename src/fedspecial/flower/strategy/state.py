"""What a `SpecialStrategy` needs to go on: one safetensors file, its JSON in the header, no pickle."""

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

_FORMAT = 1


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
        "anchored": strategy.anchor is not None,
        "anchor_is_due": strategy._anchor_is_due,
        "accountant": None if accountant is None else accountant.state_dict(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, write_safetensors(tensors, {"fedspecial": json.dumps(state)}))


def load(strategy: SpecialStrategy, path: Path) -> None:
    try:
        with safe_open(path, framework="numpy") as file:
            state = json.loads((file.metadata() or {})["fedspecial"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except FileNotFoundError:
        raise InputError(f"checkpoint={path}: there is no such file") from None
    except (SafetensorError, KeyError, ValueError):
        raise InputError(f"checkpoint={path}: it was cut off, or is not the state of a SpecialStrategy") from None
    if state["format"] != _FORMAT:
        raise InputError(f"checkpoint={path}: its format {state['format']} is not {_FORMAT}")
    for word in ("lam", "server_lr", "rounds_per_task"):
        if state[word] != getattr(strategy, word):
            raise InputError(f"{word}={getattr(strategy, word)}: the run in {path} has {word}={state[word]}")
    _restore_account(strategy, state["accountant"], path)
    strategy.task, strategy.rounds_done = state["task"], state["rounds_done"]
    strategy.theta = {name: tensors[f"theta/{name}"] for name in state["names"]}
    strategy.anchor = {name: tensors[f"anchor/{name}"] for name in state["names"]} if state["anchored"] else None
    strategy._anchor_is_due = state["anchor_is_due"]


def _restore_account(strategy: SpecialStrategy, account: dict[str, Any] | None, path: Path) -> None:
    """What was spent stays spent: neither side may forget the account."""
    accountant = _accountant(strategy)
    if (accountant is None) != (account is None):
        without = "the strategy has no accountant" if accountant is None else "the saved run had no accountant"
        raise InputError(f"checkpoint={path}: {without}, so the privacy spent would not be known")
    if accountant is not None:
        accountant.load_state_dict(account)


def _accountant(strategy: SpecialStrategy) -> Any:
    from fedspecial.flower.strategy.strategy import chain

    return next((a for part in chain(strategy.inner) if (a := getattr(part, "accountant", None)) is not None), None)
