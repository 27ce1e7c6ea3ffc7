"""Named arrays in Flower messages: which ones are accepted, and how types that NumPy lacks are sent.

Flower sends arrays as ``np.save`` bytes. A reply is compared with the message it replies to (names, shapes, types) by
reading the array headers only, so a wrong or hostile array is refused before memory is allocated for it. NumPy has no
bfloat16, so such tensors are sent as float32, which represents every bfloat16 value exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedspecial.flower.logs import one_line

if TYPE_CHECKING:
    from torch import Tensor

NamedArrays = dict[str, NDArray[Any]]

# The header that `np.save` writes. NumPy's own reader evaluates this text and allocates whatever size it claims.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([ -&(-~]{1,20})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,15}, ?){0,31}\d{0,15})\), \} *\n",
    re.DOTALL,
)


class RefusedReply(ValueError):  # noqa: N818 - an expected outcome that is counted, not a program error
    """A reply that cannot be used; the message gives the reason, which may contain text from the site."""

    def __init__(self, reason: str) -> None:
        super().__init__(one_line(reason))


def record_to_arrays(record: ArrayRecord) -> NamedArrays:
    """The arrays of a record as read-only views, without a copy."""
    return {name: read_array(name, array) for name, array in record.items()}


def reply_arrays(record: ArrayRecord, sent: Mapping[str, NDArray[Any]]) -> NamedArrays:
    """The arrays of a reply, in the order of `sent`.

    Raises `RefusedReply` if names, shapes or types differ from those sent, or if a value is NaN or infinite.
    """
    if missing := sent.keys() - record.keys():
        raise RefusedReply(f"'{min(missing)}' is missing")
    if unknown := record.keys() - sent.keys():
        raise RefusedReply(f"'{min(unknown)}' was not sent")
    arrays = {name: read_array(name, record[name], like=value) for name, value in sent.items()}
    for name, value in arrays.items():
        if not is_finite(value):
            raise RefusedReply(f"'{name}' contains NaN or infinity")
    return arrays


def read_array(name: str, array: Array, like: NDArray[Any] | None = None) -> NDArray[Any]:
    """The values of one array, after its header was checked against `like` and against the number of bytes received."""
    header = _HEADER.match(array.data)
    if header is None:
        raise RefusedReply(f"'{name}' is not an array in NumPy's format")
    kind, column_major, sides = (part.decode() for part in header.groups())
    if not re.fullmatch(r"[<>|=]?(f[248]|[iu][1248]|b1)", kind):
        raise RefusedReply(f"'{name}' has type {kind}; send numbers (bfloat16 as float32)")
    dtype, shape = np.dtype(kind), tuple(int(side) for side in sides.split(",") if side.strip())
    if not dtype.isnative:
        raise RefusedReply(f"'{name}' has type {kind}, whose byte order is not that of this machine")
    if like is not None and (shape, dtype) != (like.shape, like.dtype):
        raise RefusedReply(f"'{name}' is {dtype} {shape}, but {like.dtype} {like.shape} was sent")
    size, num_bytes = math.prod(shape), len(array.data) - header.end()
    if num_bytes != size * dtype.itemsize:
        raise RefusedReply(f"'{name}' claims {size} values, but has {num_bytes} bytes")
    flat = np.frombuffer(array.data, dtype, count=size, offset=header.end())
    try:
        return flat.reshape(shape, order="F" if column_major == "True" else "C")
    except ValueError:  # an array without values may claim sides whose product NumPy cannot represent
        raise RefusedReply(f"'{name}' has an impossible shape") from None


def arrays_to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def is_float(value: NDArray[Any]) -> bool:
    return value.dtype.kind == "f"


def is_finite(value: NDArray[Any]) -> bool:
    return not is_float(value) or bool(np.isfinite(value).all())


def state_dict_to_record(state: Mapping[str, Tensor]) -> ArrayRecord:
    """A model's ``state_dict()`` as a record, with bfloat16 converted to float32."""
    import torch

    wide = {name: t.float() if t.dtype == torch.bfloat16 else t for name, t in state.items()}
    return arrays_to_record({name: tensor.detach().cpu().numpy() for name, tensor in wide.items()})


def record_to_state_dict(record: ArrayRecord, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of `state_dict_to_record`: each tensor gets the type and the device that it has in `like`."""
    import torch

    return {
        name: torch.from_numpy(read_array(name, record[name]).copy()).to(tensor.dtype).to(tensor.device)
        for name, tensor in like.items()
    }
