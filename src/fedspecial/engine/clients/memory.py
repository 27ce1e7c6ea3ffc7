"""The memory that a client needs beside its data, measured, and the same by the paper's counting rule."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from fedspecial.core.messages import Update
from fedspecial.core.vector import FlatModel
from fedspecial.methods.base import ClientContext

_STORED = ("network/", "payload/", "state/")


def memory_sizes(context: ClientContext, update: Update, optimizer_copies: int) -> dict[str, int]:
    """Bytes of everything that a client has in memory when its training ends, by name."""
    message = context.broadcast
    sizes = {"model": nbytes(context.model.vector)}
    sizes |= {f"network/{name}": nbytes(network.vector) for name, network in context.networks.items()}
    sizes |= {f"download/{name}": nbytes(tensor) for name, tensor in message.vectors.items()}
    sizes |= {f"delta/{name}": nbytes(tensor) for name, tensor in update.deltas.items()}
    sizes |= {f"payload/{name}": nbytes(tensor) for name, tensor in message.payloads.items()}
    sizes |= {f"state/{name}": nbytes(vector) for name, vector in context.state.models.items()}
    sizes |= {f"state/{name}": nbytes(tensor) for name, tensor in context.state.tensors.items()}
    sizes |= {f"scratch/{name}": _scratch(thing) for name, thing in context.scratch.items()}
    if optimizer_copies:
        sizes["optimizer"] = optimizer_copies * nbytes(context.model.weights)
    return sizes


def paper_bytes(sizes: dict[str, int], context: ClientContext, memory_excluded: Collection[str]) -> int:
    """The paper's rule: count the working networks and what is stored beside them, but no copies made in the round.
    Stored images count as float32 and at the capacity ("name/capacity" among the state's numbers) of their store."""
    counted = {name: size for name, size in sizes.items() if name == "model" or name.startswith(_STORED)}
    for name, tensor in context.state.tensors.items():
        if tensor.dtype == torch.uint8:
            rows = int(context.state.numbers.get(f"{name}/capacity", len(tensor)))
            counted[f"state/{name}"] = 4 * rows * tensor[:1].numel()
    families = tuple(f"{name}/" for name in memory_excluded)
    return sum(size for name, size in counted.items() if name not in memory_excluded and not name.startswith(families))


def nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _scratch(thing: Any) -> int:
    if isinstance(thing, Tensor):
        return nbytes(thing)
    if isinstance(thing, FlatModel):
        return nbytes(thing.vector)
    if isinstance(thing, torch.optim.Optimizer):
        return sum(nbytes(t) for kept in thing.state.values() for t in kept.values() if isinstance(t, Tensor))
    return 0
