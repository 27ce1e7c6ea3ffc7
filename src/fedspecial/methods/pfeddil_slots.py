"""The slots of pFedDIL's server: which models there are, and which client owns which of them.

A slot is a complete model with a number: 1, or the number of the task that opened it. One table says which slots a
client owns: ``server.tensors["chosen"]`` has the task in which client m last chose slot s, 0 where it never did. The
newest choice is the slot that the client trains.

All names under which slots and what is known about them are stored and sent are made and read in this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedspecial.core.messages import THETA, Number, Numbers, ServerState, Tensors

HEAD = "aux"
"""The auxiliary head, a network beside the classifier; also the name of slot 1's."""
_CHOSEN = "chosen"
_START = "start/"


def model_key(slot: int) -> str:
    """The name of a slot's model; the first is the run's own."""
    return THETA if slot == 1 else f"slot/{slot}"


def head_key(slot: int) -> str:
    """The name of a slot's auxiliary head."""
    return HEAD if slot == 1 else f"{HEAD}/{slot}"


def start_key(key: str) -> str:
    """The name of a model or a head as it was when the task began."""
    return f"{_START}{key}"


def _initial_key(key: str) -> str:
    return f"{key}/initial"


def _classes_key(slot: int) -> str:
    return f"classes/{slot}"


def vector(server: ServerState, key: str) -> Tensor:
    """A model or a head by its name."""
    if key == THETA:
        return server.theta
    return server.models[key] if key in server.models else server.tensors[key]


def create(server: ServerState, clients: int) -> None:
    """Every client begins with slot 1. Its first weights are stored for slots that are opened later."""
    server.tensors[_CHOSEN] = torch.ones(clients, 1, dtype=torch.int64)
    for key, current in _parts(server, 1).items():
        _store(server, _initial_key(key), current.clone(), like=key)


def add_task(server: ServerState, task: int) -> None:
    """Add the column of the slot that may be opened in this task."""
    chosen = server.tensors[_CHOSEN]
    server.tensors[_CHOSEN] = pad(chosen, (0, task - chosen.shape[1]))


def open_slot(server: ServerState, slot: int, like: int | None = None) -> None:
    """Add a slot that starts with the first weights of slot 1, or as a copy of another slot."""
    source = _parts(server, like or 1)
    for key, new in ((model_key(like or 1), model_key(slot)), (head_key(like or 1), head_key(slot))):
        if key in source:
            _store(server, new, (source[key] if like else vector(server, _initial_key(key))).clone(), like=key)


def assign(server: ServerState, client: int, slot: int, task: int) -> None:
    """The client trains this slot from now on. It no longer owns slots that nobody has trained yet."""
    if client >= len(server.tensors[_CHOSEN]):
        server.tensors[_CHOSEN] = torch.stack([_row(server, m) for m in range(client + 1)])
    row = _row(server, client)
    for other in range(1, len(row) + 1):
        if not trained(server, other):
            row[other - 1] = 0
    row[slot - 1] = task


def _row(server: ServerState, client: int) -> Tensor:
    """The tasks in which a client chose each slot. A site that joined later begins with slot 1, as all others did."""
    chosen = server.tensors[_CHOSEN]
    if client < len(chosen):
        return chosen[client]
    return pad(chosen.new_ones(1), (0, chosen.shape[1] - 1))


def mark_trained(server: ServerState, keys: Iterable[str], classes: int) -> list[int]:
    """Record that the slots with these models were trained in this round, on labels of so many classes."""
    slots = [slot for slot in range(1, server.tensors[_CHOSEN].shape[1] + 1) if model_key(slot) in set(keys)]
    server.numbers |= {_classes_key(slot): classes for slot in slots}
    return slots


def trained(server: ServerState, slot: int) -> bool:
    return _classes_key(slot) in server.numbers


def owned(server: ServerState, client: int) -> list[int]:
    """The client's slots that were ever trained."""
    row = _row(server, client).tolist()
    return [slot for slot, task in enumerate(row, start=1) if task and trained(server, slot)]


def current(server: ServerState, client: int) -> int:
    """The slot that the client trains."""
    return int(_row(server, client).argmax()) + 1


def contents(server: ServerState, slots: Iterable[int]) -> Tensors:
    """Models and heads of these slots as they are now."""
    return {key: part for slot in slots for key, part in _parts(server, slot).items()}


def store_start(server: ServerState) -> None:
    """Copy every trained slot when a task begins: clients have these versions during the task."""
    slots = [slot for slot in range(1, server.tensors[_CHOSEN].shape[1] + 1) if trained(server, slot)]
    for key, part in contents(server, slots).items():
        _store(server, start_key(key), part.clone(), like=key)


def start(server: ServerState, key: str) -> Tensor:
    """A model or a head as it was when the task began."""
    return vector(server, start_key(key))


def delete_start(server: ServerState) -> None:
    for named in (server.models, server.tensors):
        for key in [key for key in named if key.startswith(_START)]:
            del named[key]


def known_classes(server: ServerState, slots: Iterable[int]) -> Numbers:
    """How many classes each slot knew when it was last trained, as numbers of a message."""
    return {_classes_key(slot): server.numbers[_classes_key(slot)] for slot in slots}


def read_classes(numbers: Numbers) -> dict[int, Number]:
    """Slot → number of classes, from the numbers of a message."""
    return _numbered("classes/", numbers)


def rho_numbers(task: int, rho: Mapping[int, Number]) -> Numbers:
    """ρ of each slot in a task, as numbers of a client's state."""
    return {f"rho/{task}/{slot}": value for slot, value in rho.items()}


def read_rho(task: int, numbers: Numbers) -> dict[int, Number]:
    """Slot → ρ in a task, from the numbers of a client's state."""
    return _numbered(f"rho/{task}/", numbers)


def _numbered(prefix: str, numbers: Numbers) -> dict[int, Number]:
    """Slot → number for names with this prefix, sorted by slot, since a message has no order."""
    return dict(sorted((int(key.removeprefix(prefix)), n) for key, n in numbers.items() if key.startswith(prefix)))


def _store(server: ServerState, key: str, part: Tensor, like: str) -> None:
    """Keep a copy of a model with the models, and one of a head with the other tensors."""
    is_model = like == THETA or like in server.models
    (server.models if is_model else server.tensors)[key] = part


def _parts(server: ServerState, slot: int) -> Tensors:
    keys = (model_key(slot), head_key(slot))
    return {k: vector(server, k) for k in keys if k == THETA or k in server.models or k in server.tensors}
