"""Tensors in shared memory, for the local worker processes: written once by the driver, read by all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
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


Place = tuple[str, torch.dtype, int, int]
"""Name, type, first byte and number of bytes of a vector in a segment."""
_ALIGNMENT = 8


def space_for(vectors: Iterable[Tensor]) -> int:
    """The size of a segment for these vectors."""
    return max(_ALIGNMENT, sum(_aligned(vector.nbytes) for vector in vectors))


def copy_to(memory: SharedMemory, vectors: dict[str, Tensor]) -> list[Place]:
    """Write vectors one after another; returns where they are."""
    at = 0
    places: list[Place] = []
    for name, vector in vectors.items():
        places.append((name, vector.dtype, at, vector.nbytes))
        _part(memory, *places[-1][1:]).copy_(vector)
        at += _aligned(vector.nbytes)
    return places


def copy_from(memory: SharedMemory, places: list[Place]) -> dict[str, Tensor]:
    """Inverse of `copy_to`; the tensors are copies."""
    return {name: _part(memory, dtype, at, size).clone() for name, dtype, at, size in places}


def _part(memory: SharedMemory, dtype: torch.dtype, at: int, size: int) -> Tensor:
    if size == 0:  # torch cannot make a view of no bytes
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(memory.buf, dtype=dtype, count=size // dtype.itemsize, offset=at)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


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
