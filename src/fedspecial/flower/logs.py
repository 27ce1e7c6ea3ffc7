"""The log of fedspecial's Flower apps on standard error, since Flower configures only its own logger; text from others
in it."""

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


_MARKUP = str.maketrans("<>`|", "‹›'/")


def one_line(text: str, length: int = 500) -> str:
    """Text from a site, made safe for logs and reports: one line, no markup, and not long enough to fill a disk."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split()).translate(_MARKUP)
    return plain if len(plain) <= length else plain[:length] + "…"


def is_plain(text: str) -> bool:
    """Whether `one_line` would leave a short text as it is."""
    return one_line(text) == text
