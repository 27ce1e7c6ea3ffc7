"""MATLAB v5 files, the format of SVHN's cropped digits: `X` 32×32×3×n and `y` with 10 for the digit 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedspecial.data.loading.bad_rows import BadRows, check_labels
from fedspecial.errors import InputError


def read(path: Path, bad: BadRows, num_classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels 0…9."""
    from scipy.io import loadmat

    try:
        found = loadmat(path, variable_names=("X", "y"))
    except NotImplementedError:
        raise InputError(f"{path.name}: a MATLAB v7.3 file; SVHN is published as v5") from None
    except Exception as error:  # the parser raises many kinds of exceptions for a damaged file
        raise InputError(f"{path.name}: not a complete MATLAB v5 file ({error})") from None
    if "X" not in found or "y" not in found:
        raise InputError(f"{path.name}: variables X and y are missing")
    x, y = found["X"], found["y"].ravel().astype(np.int64)
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
        raise InputError(f"{path.name}: X is {x.dtype} {'×'.join(map(str, x.shape))}, expected uint8 32×32×3×n")
    if x.shape[3] != len(y):
        raise InputError(f"{path.name}: {x.shape[3]} images but {len(y)} labels")
    check_labels(np.where(y == 10, 0, y), num_classes, path.name, bad)
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), np.where(y == 10, 0, y)
