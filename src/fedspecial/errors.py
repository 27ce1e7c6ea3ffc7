"""Exceptions with a message for the user: one line that names the field and the value, or the client and the round."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used. The command line prints the message and exits with code 2."""


class ClientError(RuntimeError):
    """The method's code raised an exception on a client. The message says on which one, and when."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'lam'?)`` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
