"""A real federation on Flower: strategy, clipping, audit log, promotion gate, keys, processes.

    from fedspecial.flower import SpecialStrategy

Names are imported when they are first used; Flower comes with ``pip install "fedspecial[flower]"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.flower.app.client_app import make_client_app
    from fedspecial.flower.app.grid import InProcessGrid
    from fedspecial.flower.app.server_app import make_server_app
    from fedspecial.flower.strategy.clipping import ClippedReplies, clipping_mod
    from fedspecial.flower.strategy.strategy import SpecialStrategy

__all__ = ["ClippedReplies", "InProcessGrid", "SpecialStrategy", "clipping_mod", "make_client_app", "make_server_app"]

_HOMES = {
    "ClippedReplies": "fedspecial.flower.strategy.clipping",
    "InProcessGrid": "fedspecial.flower.app.grid",
    "SpecialStrategy": "fedspecial.flower.strategy.strategy",
    "clipping_mod": "fedspecial.flower.strategy.clipping",
    "make_client_app": "fedspecial.flower.app.client_app",
    "make_server_app": "fedspecial.flower.app.server_app",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedspecial.flower' has no attribute '{name}'")
    import importlib

    require_flower()
    return getattr(importlib.import_module(_HOMES[name]), name)


def require_flower() -> None:
    """One clear line where the optional package is missing."""
    import importlib.util

    if importlib.util.find_spec("flwr") is None:
        raise InputError('flwr: it is not installed; install it with: pip install "fedspecial[flower]"')
