"""The log of fedspecial's Flower apps on standard error, since Flower configures only its own logger."""

from __future__ import annotations

import logging


def log_to_stderr() -> None:
    """Show lines from INFO on, unless the app has configured logging itself."""
    log = logging.getLogger("fedspecial.flower")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s fedspecial %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
