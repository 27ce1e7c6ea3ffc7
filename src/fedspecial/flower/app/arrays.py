"""Named arrays on Flower's wire: what may be read, and how types without a NumPy name travel.

Flower carries ``np.save`` bytes. A reply is compared with what was sent (names, shapes, types) by looking at its
headers only, so a wrong or hostile one is refused before memory is taken for it. bfloat16, which NumPy does not know,
travels as float32, which holds it exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Values = dict[str, NDArray[Any]]

# What `np.save` writes. NumPy's own reader evaluates this text, and takes memory for whatever it claims.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([ -&(-~]{1,20})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,15}, ?){0,31}\d{0,15})\), \} *\n",
    re.DOTALL,
)


class Refused(ValueError):  # noqa: N818 - it is an outcome that is counted, not a fault of the program
    """A reply that cannot be used; the message says why."""


def values_of(record: ArrayRecord) -> Values:
    """The arrays of a record, without a copy and read-only."""
    return {name: read(name, array) for name, array in record.items()}


def values_like(record: ArrayRecord, sent: Mapping[str, NDArray[Any]]) -> Values:
    """The arrays of a reply, in the order of what was sent; other names, shapes, types or NaN are refused."""
    if missing := sent.keys() - record.keys():
        raise Refused(f"'{min(missing)}' is missing")
    if unknown := record.keys() - sent.keys():
        raise Refused(f"'{min(unknown)}' was not sent")
    found = {name: read(name, record[name], like=value) for name, value in sent.items()}
    for name, value in found.items():
        if not is_finite(value):
            raise Refused(f"'{name}' holds NaN or infinity")
    return found


def read(name: str, array: Array, like: NDArray[Any] | None = None) -> NDArray[Any]:
    """One array's values. What its header claims is checked against `like` and the bytes that are there."""
    found = _HEADER.match(array.data)
    if found is None:
        raise Refused(f"'{name}' is not an array in NumPy's form")
    kind, by_columns, sides = (part.decode() for part in found.groups())
    if not re.fullmatch(r"[<>|=]?(f[248]|[iu][1248]|b1)", kind):
        raise Refused(f"'{name}' has type {kind}; send numbers (bfloat16 as float32)")
    dtype, shape = np.dtype(kind), tuple(int(side) for side in sides.split(",") if side.strip())
    if like is not None and (shape, dtype) != (like.shape, like.dtype):
        raise Refused(f"'{name}' is {dtype} {shape}, but {like.dtype} {like.shape} was sent")
    size, follow = math.prod(shape), len(array.data) - found.end()
    if follow != size * dtype.itemsize:
        raise Refused(f"'{name}' claims {size} values, but {follow} bytes follow")
    flat = np.frombuffer(array.data, dtype, count=size, offset=found.end())
    return flat.reshape(shape, order="F" if by_columns == "True" else "C")


def record_of(values: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def is_float(value: NDArray[Any]) -> bool:
    return value.dtype.kind == "f"


def is_finite(value: NDArray[Any]) -> bool:
    return not is_float(value) or bool(np.isfinite(value).all())


def record_of_state(state: Mapping[str, Tensor]) -> ArrayRecord:
    """A model's ``state_dict()`` for the wire, bfloat16 widened to float32."""
    import torch

    wide = {name: t.float() if t.dtype == torch.bfloat16 else t for name, t in state.items()}
    return record_of({name: tensor.detach().cpu().numpy() for name, tensor in wide.items()})


def state_of_record(record: ArrayRecord, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of `record_of_state`: each tensor gets the type and the device it has in `like`."""
    import torch

    return {
        name: torch.from_numpy(read(name, record[name]).copy()).to(tensor.dtype).to(tensor.device)
        for name, tensor in like.items()
    }
