"""Flower and what it stands on warn when they are imported; that is not ours to fail on."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import flwr.clientapp
    import flwr.serverapp.strategy  # noqa: F401
