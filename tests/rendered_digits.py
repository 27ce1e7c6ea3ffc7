"""Render each domain of digits-shift once per process: this takes as long as a small run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from fedspecial.data.benchmarks import digits_shift

_STROKES = digits_shift._strokes


def _once(draw: Callable[..., Any]) -> Callable[..., Any]:
    images: list[Any] = []

    def domain(digits: Any, rng: Any) -> Any:
        if not images:
            images.append(draw(_STROKES(digits, rng), rng))
        return images[0]

    return domain


_DOMAINS = {name: _once(draw) for name, draw in digits_shift.DOMAINS.items()}


def rendered_once() -> Any:
    """A patch, to be started or used with `with`. The digits and the random numbers of a domain are always the same."""
    return patch.multiple(digits_shift, DOMAINS=_DOMAINS, _strokes=lambda digits, rng: digits)
