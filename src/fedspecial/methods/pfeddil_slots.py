"""The book of slots that pFedDIL's server keeps: the models there are, and which client owns which.

A slot is a whole model with a number: 1, or the number of the task that opened it. Which slots a client owns is told by
one table, ``server.tensors["chosen"]``: the task in which client m last chose slot s, 0 where it never did. The
newest choice is the slot that the client trains.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedspecial.core.messages import Number, Numbers, ServerState, Tensors


def model_key(slot: int) -> str:
    """The name of a slot's model; the first is the run's own."""
    return "theta" if slot == 1 else f"slot/{slot}"


def head_key(slot: int) -> str:
    """The name of a slot's auxiliary head."""
    return "aux" if slot == 1 else f"aux/{slot}"


def found(server: ServerState, clients: int, tasks: int) -> None:
    """Everybody begins with slot 1; where it begins is kept, for slots that are opened later."""
    server.tensors["chosen"] = torch.zeros(clients, tasks, dtype=torch.int64)
    server.tensors["chosen"][:, 0] = 1
    for key, vector in _parts(server, 1).items():
        server.tensors[f"{key}/initial"] = vector.clone()


def open_slot(server: ServerState, slot: int, like: int | None = None) -> None:
    """A new slot, from where the first one began or as a copy of another."""
    source = _parts(server, like or 1)
    for key, new in ((model_key(like or 1), model_key(slot)), (head_key(like or 1), head_key(slot))):
        if key in source:
            server.tensors[new] = (source[key] if like else server.tensors[f"{key}/initial"]).clone()


def note_choice(server: ServerState, client: int, slot: int, task: int) -> None:
    """The client trains this slot from now on. Slots that nobody has trained yet are no longer its own."""
    row = server.tensors["chosen"][client]
    for other in range(1, len(row) + 1):
        if not trained(server, other):
            row[other - 1] = 0
    row[slot - 1] = task


def note_training(server: ServerState, keys: Iterable[str], classes: int) -> list[int]:
    """The slots whose models are named were trained just now, on labels of so many classes."""
    slots = [slot for slot in range(1, server.tensors["chosen"].shape[1] + 1) if model_key(slot) in set(keys)]
    server.numbers |= {f"classes/{slot}": classes for slot in slots}
    return slots


def trained(server: ServerState, slot: int) -> bool:
    return f"classes/{slot}" in server.numbers


def owned(server: ServerState, client: int) -> list[int]:
    """The client's slots that were ever trained."""
    row = server.tensors["chosen"][client].tolist()
    return [slot for slot, task in enumerate(row, start=1) if task and trained(server, slot)]


def current(server: ServerState, client: int) -> int:
    """The slot that the client trains."""
    return int(server.tensors["chosen"][client].argmax()) + 1


def contents(server: ServerState, slots: Iterable[int]) -> Tensors:
    """Models and heads of these slots as they are now."""
    return {key: vector for slot in slots for key, vector in _parts(server, slot).items()}


def remember_start(server: ServerState) -> None:
    """Keep every trained slot as it is when a task begins: that is what clients hold while it lasts."""
    slots = [slot for slot in range(1, server.tensors["chosen"].shape[1] + 1) if trained(server, slot)]
    server.tensors |= {f"start/{key}": vector.clone() for key, vector in contents(server, slots).items()}


def forget_start(server: ServerState) -> None:
    for key in [key for key in server.tensors if key.startswith("start/")]:
        del server.tensors[key]


def known_classes(server: ServerState, slots: Iterable[int]) -> Numbers:
    """How many classes each slot knew when it was last trained, as a message says it."""
    return {f"classes/{slot}": server.numbers[f"classes/{slot}"] for slot in slots}


def numbered(prefix: str, numbers: Numbers) -> dict[int, Number]:
    """Slot → number, of those whose names begin so; by slot, since a message keeps no order."""
    return dict(sorted((int(key.removeprefix(prefix)), n) for key, n in numbers.items() if key.startswith(prefix)))


def _everything(server: ServerState) -> Tensors:
    return {"theta": server.theta, **server.tensors}


def _parts(server: ServerState, slot: int) -> Tensors:
    held: dict[str, Tensor] = _everything(server)
    return {key: held[key] for key in (model_key(slot), head_key(slot)) if key in held}
