"""The updates of one round, held until all have arrived.

The plain mean adds up updates as they arrive and needs the memory of one. Comparing an update with the others of its
round (`norm_limit`), and robust means, need all of them. They are held in memory up to `IN_MEMORY` bytes; further ones
are in files that the operating system maps into memory and can write out when memory is short.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from fedspecial.core.messages import Tensors, Update
from fedspecial.engine.aggregation.screening import Sizes, Statistics, sizes
from fedspecial.engine.base import Reply

IN_MEMORY = 1 << 30


@dataclass
class HeldUpdates:
    """
    statistics: where vectors have BatchNorm statistics
    sizes:      client → see `screening.too_large`, in the order of arrival
    """

    folder: Path
    statistics: Statistics
    sizes: dict[int, Sizes] = field(default_factory=dict)
    _updates: list[Update] = field(default_factory=list)
    _bytes: int = 0

    def add(self, reply: Reply, update: Update) -> None:
        """Keep a copy, since the tensors of a reply are valid only until the next one."""
        self.sizes[update.client] = sizes(update.deltas, reply.sent, self.statistics)
        self._updates.append(replace(update, deltas=self._copied(update.deltas), uploads=_cloned(update.uploads)))

    def take(self) -> Iterator[Update]:
        """The updates in the order of arrival; each is released when the caller drops it."""
        while self._updates:
            yield self._updates.pop(0)

    def _copied(self, deltas: Tensors) -> Tensors:
        copies = {}
        for name, delta in deltas.items():
            self._bytes += delta.numel() * delta.element_size()
            copies[name] = delta.clone() if self._bytes <= IN_MEMORY else self._in_file(delta)
        return copies

    def _in_file(self, delta: Tensor) -> Tensor:
        """A copy in a mapped file, which has no name any more and disappears with the tensor."""
        descriptor, path = tempfile.mkstemp(dir=self.folder, suffix=".part")
        try:
            os.truncate(descriptor, delta.numel() * delta.element_size())
            copy = torch.from_file(path, shared=True, size=delta.numel(), dtype=delta.dtype)
        finally:
            os.close(descriptor)
            os.unlink(path)
        return copy.copy_(delta.reshape(-1)).view(delta.shape)


def _cloned(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}
