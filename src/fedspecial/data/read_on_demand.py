"""Inputs that are not one array in memory: data sets that are read batch by batch, and dict and tuple inputs.

Both have the part of a tensor's interface that training and evaluation use: `len`, `shape`, `dtype`, `x[rows]`,
`x.index_select(0, rows)` and `x.to(device)`. The last two return a batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.batches import Batch, map_tensors, tensors_of
from fedspecial.core.streams import preserve_torch_rng, stream_seed
from fedspecial.data.input_arrays import native_array
from fedspecial.errors import InputError

Transform = Callable[[Any], Any]
"""From one input, as the data set or array has it, to one input of the model."""
Rows = np.ndarray | Tensor | slice


@dataclass
class DatasetInputs:
    """The inputs of a map-style data set, read when a batch needs them; nothing is kept.

    source:    ``source[i]`` is a pair (input, target)
    rows:      which items of the source
    name:      of the data, for messages
    stream:    names the random numbers of `transform` and of the data set; without it, they depend on the item alone
    """

    source: Any
    rows: np.ndarray
    name: str
    transform: Transform | None = None
    stream: int | None = None
    _reads: int = field(default=0, repr=False)

    device = torch.device("cpu")

    def __len__(self) -> int:
        return len(self.rows)

    def seeded(self, seed: int, *keys: int | str) -> DatasetInputs:
        """The same inputs with random numbers of their own, such as those of one client in one round."""
        return replace(self, stream=stream_seed(seed, "augmentation", *keys), _reads=0)

    @cached_property
    def _first(self) -> Batch:
        if not len(self.rows):
            raise InputError(f"{self.name}: the data set is empty")
        return self._read(self.rows[:1])

    @property
    def is_nested(self) -> bool:
        """Whether a batch is a dict or a tuple."""
        return not isinstance(self._first, Tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *(() if self.is_nested else self._first.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return tensors_of(self._first)[0].dtype

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def __getitem__(self, rows: Rows) -> DatasetInputs:
        return replace(self, rows=self.rows[_as_index(rows)])

    def index_select(self, dim: int, rows: Tensor) -> Batch:
        return self._read(self.rows[rows.cpu().numpy()])

    def to(self, device: torch.device) -> Batch:
        return map_tensors(lambda tensor: tensor.to(device), self._read(self.rows))

    def sample(self, row: int) -> Any:
        """One input as a batch of one."""
        return self._read(self.rows[row : row + 1])

    def _read(self, items: np.ndarray) -> Batch:
        found = []
        with _preserved_random_state():
            for item in items.tolist():
                # The number of the read, not the position in the batch: an epoch sees another version of each sample.
                number = item if self.stream is None else self.stream + self._reads
                self._reads += 1
                _seed_all(number)
                value = self.source[item][0]
                found.append(as_tensors(value if self.transform is None else self.transform(value)))
        batch = _stack(found, self.name)
        for tensor in tensors_of(batch):
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                bad = int((~tensor.isfinite()).flatten(1).any(1).nonzero()[0]) if tensor.dim() > 1 else 0
                raise InputError(f"{self.name}: row {int(items[bad])}: the input contains NaN or infinity")
        return batch


@dataclass
class NestedInputs:
    """Dict or tuple inputs in memory: tensors with one row per sample."""

    parts: Batch
    is_nested = True
    device = torch.device("cpu")

    def __len__(self) -> int:
        return len(tensors_of(self.parts)[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self),)

    @property
    def dtype(self) -> torch.dtype:
        return tensors_of(self.parts)[0].dtype

    def is_floating_point(self) -> bool:
        return False

    def __getitem__(self, rows: Rows) -> NestedInputs:
        index: Any = rows if isinstance(rows, slice) else torch.as_tensor(rows)
        return NestedInputs(map_tensors(lambda tensor: tensor[index], self.parts))

    def index_select(self, dim: int, rows: Tensor) -> Batch:
        return map_tensors(lambda tensor: tensor.index_select(0, rows), self.parts)

    def to(self, device: torch.device) -> Batch:
        return map_tensors(lambda tensor: tensor.to(device), self.parts)


def array_inputs(x: Any, name: str = "inputs") -> Any:
    """An array as a tensor; a dict or tuple of arrays as `NestedInputs`. `name`: of the samples, for messages."""
    if isinstance(x, Mapping):
        return NestedInputs({key: array_inputs(part, name) for key, part in x.items()})
    if isinstance(x, tuple):
        return NestedInputs(tuple(array_inputs(part, name) for part in x))
    try:
        tensor = torch.as_tensor(native_array(x) if hasattr(x, "__array__") and not isinstance(x, Tensor) else x)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{name}: {type(x).__name__} does not become a tensor ({reason}); give numbers") from None
    if tensor.is_complex() or tensor.dtype in _UNUSABLE:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise InputError(f"{name}: inputs of type {kind} cannot be computed with; convert them to float32")
    return tensor.float() if tensor.dtype == torch.float64 else tensor


_UNUSABLE = (torch.uint16, torch.uint32, torch.uint64)
"""Types that torch stores but has hardly any operation for, such as images of 16 bits."""


@dataclass(frozen=True)
class ArrayItems:
    """Inputs in memory as items of a data set, so that a transform can be applied to each."""

    x: Any

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Any, None]:
        if isinstance(self.x, Tensor):
            return self.x[row], None
        one = self.x.index_select(0, torch.tensor([row]))
        return map_tensors(lambda tensor: tensor[0], one), None


def concatenated(parts: Sequence[Any]) -> Any:
    """The inputs of several domains, one after another."""
    if all(isinstance(part, Tensor) for part in parts):
        return torch.cat(list(parts))
    items: list[Any] = [ArrayItems(part) for part in parts]
    joined: torch.utils.data.ConcatDataset[Any] = torch.utils.data.ConcatDataset(items)
    return DatasetInputs(joined, np.arange(len(joined)), "all domains")


def targets_of(dataset: Any, name: str) -> Any:
    """The targets of a data set: its attribute `targets` or `labels`, or else one pass that keeps only them."""
    first = dataset[0][1]
    for attribute in ("targets", "labels"):
        values = getattr(dataset, attribute, None)
        if values is not None and np.ndim(values) > 0 and len(values) == len(dataset) and _same(values[0], first):
            return values
    with _preserved_random_state():
        return [dataset[item][1] for item in range(len(dataset))]


def _same(one: Any, other: Any) -> bool:
    """Whether two targets are equal; a data set may transform what its attribute has."""
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    try:
        return np.array_equal(np.asarray(one), np.asarray(other))
    except (TypeError, ValueError):
        return False


def check_map_style(source: Any, name: str) -> None:
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise InputError(
            f"{name}: {type(source).__name__} has no length or no items by number; give a map-style data set "
            "(__len__ and __getitem__), a pair (inputs, targets) of arrays, or Samples"
        )
    if len(source) == 0:
        raise InputError(f"{name}: the data set is empty")
    first = source[0]
    if not (isinstance(first, tuple | list) and len(first) == 2):
        raise InputError(f"{name}: an item is {type(first).__name__}, expected a pair (input, target)")


def as_tensors(value: Any) -> Any:
    """One input as tensors: arrays, numbers and PIL images are converted, float64 becomes float32."""
    if isinstance(value, Mapping):
        return {key: as_tensors(part) for key, part in value.items()}
    if isinstance(value, tuple | list) and not all(isinstance(part, int | float) for part in value):
        return tuple(as_tensors(part) for part in value)
    if hasattr(value, "convert") and hasattr(value, "getbands"):  # an image of PIL
        array = np.asarray(value)
        value = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    tensor = torch.as_tensor(np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value)
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _stack(items: Sequence[Any], name: str) -> Batch:
    first = items[0]
    try:
        if isinstance(first, Mapping):
            return {key: _stack([item[key] for item in items], name) for key in first}
        if isinstance(first, tuple):
            return tuple(_stack(column, name) for column in zip(*items, strict=True))
        return torch.stack(list(items))
    except (RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{name}: its inputs cannot form a batch ({reason}); all need the same shape") from None


def _as_index(rows: Rows) -> Any:
    return rows.cpu().numpy() if isinstance(rows, Tensor) else rows


@contextmanager
def _preserved_random_state() -> Iterator[None]:
    """Data sets draw from the generators of torch, NumPy and Python; all are restored afterwards."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 (what data sets use)
    with preserve_torch_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002


def _seed_all(number: int) -> None:
    torch.default_generator.manual_seed(number % 2**63)
    np.random.seed(number % 2**32)  # noqa: NPY002
    random.seed(number)
