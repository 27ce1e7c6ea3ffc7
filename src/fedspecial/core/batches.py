"""A batch of inputs: a tensor, or a dict or tuple of tensors with one row per sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Batch = Any
"""A tensor, a dict of batches, or a tuple of batches."""


def map_tensors(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """The same structure with the function applied to each tensor."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(function, part) for key, part in batch.items()}
    return tuple(map_tensors(function, part) for part in batch)


def tensors_of(batch: Batch) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, Mapping) else batch
    return [tensor for part in parts for tensor in tensors_of(part)]


def to_device(batch: Batch, device: torch.device) -> Batch:
    return batch.to(device) if isinstance(batch, Tensor) else map_tensors(lambda tensor: tensor.to(device), batch)


def batch_length(batch: Batch) -> int:
    """The number of samples."""
    return len(batch) if isinstance(batch, Tensor) else len(tensors_of(batch)[0])
