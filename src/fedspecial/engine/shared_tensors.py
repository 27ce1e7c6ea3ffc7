"""Tensors in shared memory, for the local worker processes: written once by the driver, read by all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch
from torch import Tensor

from fedspecial.core.messages import Broadcast
from fedspecial.engine.jobs import Job, PersonalJob

INLINE_BYTES = 1 << 14
"""Smaller tensors are sent with the job: a segment of their own would cost more."""
_OPEN_SEGMENTS = 64


@dataclass(frozen=True)
class SharedTensor:
    """Where a tensor is in shared memory."""

    segment: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class SharedTensors:
    """The driver's side. A tensor that was not written to since it was shared is not copied again."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Tensor, int, SharedMemory, SharedTensor]] = {}
        self._used: set[Hashable] = set()

    def share_job(self, job: Job) -> Job:
        """The job with large tensors replaced by their place in shared memory."""
        return map_messages(job, self._share)

    def _share(self, tensor: Tensor) -> Any:
        if tensor.nbytes < INLINE_BYTES:
            return tensor.detach().cpu().clone()  # a view would be sent with all of its storage
        key = memory_key(tensor)
        self._used.add(key)
        known = self._known.get(key)
        if known is not None and known[1] == tensor._version:
            return known[3]
        memory = (
            known[2] if known is not None else SharedMemory(create=True, size=tensor.numel() * tensor.element_size())
        )
        shared = SharedTensor(memory.name, tensor.dtype, tuple(tensor.shape))
        _view(memory, shared).copy_(tensor.detach())
        # The tensor is kept, so its memory cannot be given to another one in the meantime.
        self._known[key] = (tensor, tensor._version, memory, shared)
        return shared

    def release_unused(self) -> None:
        """Free the segments of tensors that were not shared since the last call."""
        for key in self._known.keys() - self._used:
            release(self._known.pop(key)[2])
        self._used.clear()

    def close(self) -> None:
        self._used.clear()
        self.release_unused()


class AttachedTensors:
    """A worker's side: tensors that are views of the driver's segments."""

    def __init__(self) -> None:
        self._open: dict[str, SharedMemory] = {}

    def attach_job(self, job: Job) -> Job:
        return map_messages(job, self._attach)

    def memory(self, segment: str) -> SharedMemory:
        if segment not in self._open:
            self._open[segment] = SharedMemory(segment)
        self._open[segment] = self._open.pop(segment)  # the least recently used one is the first
        return self._open[segment]

    def close_unused(self) -> None:
        """Close segments that were not used lately. Call it between jobs, when nothing refers to them."""
        while len(self._open) > _OPEN_SEGMENTS:
            oldest = next(iter(self._open))
            try:
                self._open[oldest].close()
            except BufferError:  # something still refers to it; it is tried again after the next job
                return
            del self._open[oldest]

    def _attach(self, tensor: Any) -> Tensor:
        return _view(self.memory(tensor.segment), tensor) if isinstance(tensor, SharedTensor) else tensor


def copy_to(memory: SharedMemory, vectors: dict[str, Tensor]) -> list[tuple[str, int]]:
    """Write float32 vectors one after another; returns names and lengths."""
    total = sum(len(vector) for vector in vectors.values())
    space, at = torch.frombuffer(memory.buf, dtype=torch.float32, count=total), 0
    for vector in vectors.values():
        space[at : at + len(vector)].copy_(vector)
        at += len(vector)
    return [(name, len(vector)) for name, vector in vectors.items()]


def copy_from(memory: SharedMemory, table: list[tuple[str, int]]) -> dict[str, Tensor]:
    """Inverse of `copy_to`; the tensors are copies."""
    total = sum(length for _, length in table)
    values, at, vectors = torch.frombuffer(memory.buf, dtype=torch.float32, count=total).clone(), 0, {}
    for name, length in table:
        vectors[name] = values[at : at + length]
        at += length
    return vectors


def release(memory: SharedMemory) -> None:
    memory.close()
    memory.unlink()


def _view(memory: SharedMemory, shared: SharedTensor) -> Tensor:
    count = torch.Size(shared.shape).numel()
    return torch.frombuffer(memory.buf, dtype=shared.dtype, count=count).view(shared.shape)


def memory_key(tensor: Tensor) -> Hashable:
    """Equal for tensors that are the same part of memory, read in the same way."""
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def map_messages(job: Job, change: Callable[[Any], Any]) -> Job:
    """The job with `change` applied to every tensor of its messages."""

    def changed(message: Broadcast) -> Broadcast:
        vectors = {name: change(tensor) for name, tensor in message.vectors.items()}
        return replace(message, vectors=vectors, payloads={n: change(t) for n, t in message.payloads.items()})

    if isinstance(job, PersonalJob):
        return replace(job, members=[(client, changed(message), state) for client, message, state in job.members])
    return replace(job, message=changed(job.message))
