"""Figures without drawing them: layout and text of the figures of a run take several times as long as a small run."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from unittest.mock import patch

from matplotlib.figure import Figure

ONE_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)


def save_blank(figure: Any, target: Any, **options: Any) -> None:
    """In the place of `Figure.savefig`: writes an image of one pixel."""
    if hasattr(target, "write"):
        target.write(ONE_PIXEL)
    else:
        Path(target).write_bytes(ONE_PIXEL)


_DRAW = Figure.savefig


def blank() -> Any:
    """A patch: figures are written, but not drawn."""
    return patch.object(Figure, "savefig", save_blank)


def drawn() -> Any:
    """A patch within `blank`: figures are drawn."""
    return patch.object(Figure, "savefig", _DRAW)
