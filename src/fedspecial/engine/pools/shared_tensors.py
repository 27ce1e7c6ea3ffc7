"""Tensors in shared memory, for the local worker processes: written once by the driver, read by all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedspecial.core.messages import Broadcast
from fedspecial.engine.pools.jobs import Job, PersonalJob
from fedspecial.engine.pools.segments import Segment

INLINE_BYTES = 1 << 14
"""Smaller tensors are sent with the job: a segment of their own would cost more."""
_OPEN_SEGMENTS = 64


@dataclass(frozen=True)
class SharedTensor:
    """Where a tensor is in shared memory."""

    segment: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class SharedTensors:
    """The driver's side. A tensor that was not written to since it was shared is not copied again."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Tensor, int, Segment, SharedTensor]] = {}
        self._used: set[Hashable] = set()

    def share_job(self, job: Job) -> tuple[Job, list[Segment]]:
        """The job with large tensors replaced by their place in shared memory, and the segments that it uses."""
        used: dict[int, Segment] = {}
        return map_messages(job, lambda tensor: self._share(tensor, used)), list(used.values())

    def _share(self, tensor: Tensor, used: dict[int, Segment]) -> Any:
        if tensor.nbytes < INLINE_BYTES:
            return tensor.detach().cpu().clone()  # a view would be sent with all of its storage
        key = memory_key(tensor)
        self._used.add(key)
        known = self._known.get(key)
        segment = known[2] if known is not None else Segment.create(tensor.numel() * tensor.element_size())
        used[segment.number] = segment
        if known is not None and known[1] == tensor._version:
            return known[3]
        shared = SharedTensor(segment.number, tensor.dtype, tuple(tensor.shape))
        _view(segment, shared).copy_(tensor.detach())
        # The tensor is kept, so its memory cannot be given to another one in the meantime.
        self._known[key] = (tensor, tensor._version, segment, shared)
        return shared

    def release_unused(self) -> None:
        """Free the segments of tensors that were not shared since the last call."""
        for key in self._known.keys() - self._used:
            self._known.pop(key)[2].close()
        self._used.clear()

    def close(self) -> None:
        self._used.clear()
        self.release_unused()


class AttachedTensors:
    """A worker's side: tensors that are views of the driver's segments."""

    def __init__(self) -> None:
        self._open: dict[int, Segment] = {}

    def receive(self, number: int, size: int, descriptor: int) -> None:
        """Open a segment, unless it is open already. The least recently used segment is the first of all."""
        if number in self._open:
            os.close(descriptor)
            self._open[number] = self._open.pop(number)
        else:
            self._open[number] = Segment(number, descriptor, size)

    def attach_job(self, job: Job) -> Job:
        return map_messages(job, self._attach)

    def segment(self, number: int) -> Segment:
        return self._open[number]

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
        return _view(self._open[tensor.segment], tensor) if isinstance(tensor, SharedTensor) else tensor


Place = tuple[str, torch.dtype, int, int]
"""Name, type, first byte and number of bytes of a vector in a segment."""
_ALIGNMENT = 8


def space_for(vectors: Iterable[Tensor]) -> int:
    """The size of a segment for these vectors."""
    return max(_ALIGNMENT, sum(_aligned(vector.nbytes) for vector in vectors))


def copy_to(segment: Segment, vectors: dict[str, Tensor]) -> list[Place]:
    """Write vectors one after another; returns where they are."""
    at = 0
    places: list[Place] = []
    for name, vector in vectors.items():
        places.append((name, vector.dtype, at, vector.nbytes))
        _part(segment, *places[-1][1:]).copy_(vector)
        at += _aligned(vector.nbytes)
    return places


def copy_from(segment: Segment, places: list[Place]) -> dict[str, Tensor]:
    """Inverse of `copy_to`; the tensors are copies."""
    return {name: _part(segment, dtype, at, size).clone() for name, dtype, at, size in places}


def _part(segment: Segment, dtype: torch.dtype, at: int, size: int) -> Tensor:
    if size == 0:  # torch cannot make a view of no bytes
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(segment.memory, dtype=dtype, count=size // dtype.itemsize, offset=at)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _view(segment: Segment, shared: SharedTensor) -> Tensor:
    count = torch.Size(shared.shape).numel()
    return torch.frombuffer(segment.memory, dtype=shared.dtype, count=count).view(shared.shape)


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
