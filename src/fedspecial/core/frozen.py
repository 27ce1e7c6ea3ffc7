"""The frozen part of a model: weights that are not trained stay where they are and are neither sent nor averaged.

A weight is frozen if its `requires_grad` is False. A module without trainable weights is frozen as a whole: its buffers
belong to the frozen part too, and its BatchNorm layers are in evaluation mode while the rest is trained. A module
without any weights, such as BatchNorm without scale and shift, is frozen if the module around it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from torch import Tensor, nn

from fedspecial.core.messages import raw_bytes


def frozen_modules(module: nn.Module) -> list[nn.Module]:
    """The modules in which nothing is trained; none where every weight is trainable."""
    if all(weight.requires_grad for weight in module.parameters()):
        return []
    found: dict[int, nn.Module] = {}

    def visit(part: nn.Module, around: bool) -> None:
        weights = list(part.parameters())
        frozen = not any(weight.requires_grad for weight in weights) if weights else around
        if frozen:
            found[id(part)] = part
        for child in part.children():
            visit(child, frozen)

    visit(module, False)
    return list(found.values())


def frozen_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The frozen part by name, as in the module's state; a tied weight once for each of its names."""
    found = {n: w.detach() for n, w in module.named_parameters(remove_duplicate=False) if not w.requires_grad}
    parts = {id(part) for part in frozen_modules(module)}
    for prefix, part in module.named_modules(remove_duplicate=False) if parts else ():
        for leaf, buffer in part.named_buffers(prefix, recurse=False):
            if id(part) in parts and leaf.rpartition(".")[2] not in part._non_persistent_buffers_set:
                found[leaf] = buffer
    return found


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Hash of names, shapes, types and values."""
    table = [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in sorted(tensors.items())]
    sha = hashlib.sha256(json.dumps(table).encode())
    for _, tensor in sorted(tensors.items()):
        sha.update(raw_bytes(tensor))
    return sha.hexdigest()
