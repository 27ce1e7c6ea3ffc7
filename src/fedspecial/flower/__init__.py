"""Real federations on Flower.

    from fedspecial.flower import SpecialStrategy

- `strategy`: SPECIAL as a Flower strategy, and clipping, for apps that already use Flower
- `app`: the training loop of fedspecial as a Flower ServerApp and ClientApp, for every method
- `governance`: round policy, audit log, promotion gate
- `ops`: keys and certificates, local processes, the demo, the template of `fedspecial flower init`

The names below are imported on first use. Install Flower with ``pip install "fedspecial[flower]"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.flower.app.client_app import make_client_app
    from fedspecial.flower.app.server_app import make_server_app
    from fedspecial.flower.grid import InProcessGrid
    from fedspecial.flower.strategy.clipping import ClippedReplies, clipping_mod
    from fedspecial.flower.strategy.strategy import SpecialStrategy

__all__ = ["ClippedReplies", "InProcessGrid", "SpecialStrategy", "clipping_mod", "make_client_app", "make_server_app"]

_MODULES = {
    "ClippedReplies": "fedspecial.flower.strategy.clipping",
    "InProcessGrid": "fedspecial.flower.grid",
    "SpecialStrategy": "fedspecial.flower.strategy.strategy",
    "clipping_mod": "fedspecial.flower.strategy.clipping",
    "make_client_app": "fedspecial.flower.app.client_app",
    "make_server_app": "fedspecial.flower.app.server_app",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedspecial.flower' has no attribute '{name}'")
    import importlib

    require_flower()
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "require_flower"]


def require_flower() -> None:
    """Raise a one-line `InputError` if Flower is not installed."""
    import importlib.util

    if importlib.util.find_spec("flwr") is None:
        raise InputError('flwr: Flower is not installed; install it with: pip install "fedspecial[flower]"')
