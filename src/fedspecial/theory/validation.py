"""Argument checks. Each raises a ``ValueError`` that names the argument and shows the value."""

from __future__ import annotations

import math
import operator
from typing import SupportsIndex


def finite(name: str, value: float) -> float:
    """Return ``value`` as a float; NaN, infinity and values that are not numbers are rejected."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return number


def nonnegative(name: str, value: float) -> float:
    """Return ``value`` as a finite number of at least zero."""
    number = finite(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0, got {value!r}")
    return number


def positive(name: str, value: float) -> float:
    """Return ``value`` as a finite number above zero."""
    number = finite(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be above 0, got {value!r}")
    return number


def cosine(name: str, value: float) -> float:
    """Return ``value`` as a number in [-1, 1]."""
    number = finite(name, value)
    if not -1 <= number <= 1:
        raise ValueError(f"{name} must lie in [-1, 1], got {value!r}")
    return number


def count(name: str, value: SupportsIndex, low: int = 1) -> int:
    """Return ``value`` as an integer of at least ``low``. NumPy integers are accepted; 5.0 and True are not."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if number < low:
        raise ValueError(f"{name} must be at least {low}, got {value!r}")
    return number


def finite_or_none(value: float | None) -> float | None:
    """The value for a JSON file, where infinity and NaN become null."""
    return value if value is not None and math.isfinite(value) else None
