"""Flower and its dependencies warn on import; these warnings must not fail our tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from unittest.mock import DEFAULT, patch

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import flwr.clientapp
    import flwr.serverapp.strategy  # noqa: F401


@pytest.fixture(scope="module")
def unpictured() -> Iterator[None]:
    """Runs without their pictures, which take longer than the learning."""
    from fedspecial.runs import execute as execution

    with patch.multiple(execution, **dict.fromkeys(("draw_matrix", "draw_curves", "draw_drift"), DEFAULT)):
        yield
