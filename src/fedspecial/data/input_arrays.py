"""Arrays of inputs: what kind they are, whether their values can be used, and how images are normalised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspecial.data.schema import Kind
from fedspecial.errors import InputError


def native_array(values: Any) -> np.ndarray:
    """An array, or a table of pandas, in a layout of memory that torch can read."""
    array = np.asarray(values)
    if hasattr(values, "to_numpy"):  # pandas: types of numbers of its own, and memory that must not be written to
        array = values.to_numpy(dtype=np.float64, na_value=np.nan) if array.dtype == object else array
        array = array if array.flags.writeable else array.copy()
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(array) if any(stride < 0 for stride in array.strides) else array


def scale_and_shift(
    mean: Sequence[float], std: Sequence[float], device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """(x/255 − mean)/std as one multiplication and one addition per channel."""
    means, stds = (torch.tensor(values, dtype=torch.float32).view(1, -1, 1, 1) for values in (mean, std))
    return (1 / (255 * stds)).to(device), (-means / stds).to(device)


def normalised(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """uint8 images as a model reads them."""
    return x.float().mul_(scale).add_(shift)


def check_finite(x: Tensor, where: str, missing_allowed: bool) -> None:
    """Infinity is refused everywhere; NaN is a missing value in a table, and refused elsewhere."""
    bad = x.isinf() if missing_allowed else ~x.isfinite()
    if bool(bad.any()):
        row = int(bad.flatten(1).any(1).nonzero()[0]) if x.dim() > 1 else int(bad.nonzero()[0])
        what = "NaN" if bool(x[row].isnan().any()) else "infinity"
        raise InputError(f"{where}: row {row}: the input contains {what}")


def kind_of(x: Any) -> Kind:
    """What samples are, by their shape: images, rows of a table, or token ids."""
    if not isinstance(x, Tensor) and x.is_nested:
        return "other"
    if len(x.shape) == 4:
        return "image"
    if len(x.shape) == 2:
        return "text" if x.dtype == torch.int64 else "table"
    return "other"
