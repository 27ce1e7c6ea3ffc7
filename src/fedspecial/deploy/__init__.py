"""A real federation on Flower: strategy, clipping, audit log, promotion gate, keys, processes.

    from fedspecial.deploy import SpecialStrategy

Names are imported when they are first used; Flower comes with ``pip install "fedspecial[flower]"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.deploy.client_app import make_client_app
    from fedspecial.deploy.clipping import ClippedReplies, clipping_mod
    from fedspecial.deploy.grid import InProcessGrid
    from fedspecial.deploy.server_app import make_server_app
    from fedspecial.deploy.strategy import SpecialStrategy

__all__ = ["ClippedReplies", "InProcessGrid", "SpecialStrategy", "clipping_mod", "make_client_app", "make_server_app"]

_HOMES = {
    "ClippedReplies": "fedspecial.deploy.clipping",
    "InProcessGrid": "fedspecial.deploy.grid",
    "SpecialStrategy": "fedspecial.deploy.strategy",
    "clipping_mod": "fedspecial.deploy.clipping",
    "make_client_app": "fedspecial.deploy.client_app",
    "make_server_app": "fedspecial.deploy.server_app",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedspecial.deploy' has no attribute '{name}'")
    import importlib

    require_flower()
    return getattr(importlib.import_module(_HOMES[name]), name)


def require_flower() -> None:
    """One clear line where the optional package is missing."""
    import importlib.util

    if importlib.util.find_spec("flwr") is None:
        raise InputError('flwr: it is not installed; install it with: pip install "fedspecial[flower]"')
