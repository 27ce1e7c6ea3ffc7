"""Exceptions with a message for the user: one line that names the field and the value, or the client and the round."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used. The command line prints it and exits with code 2."""


class ClientError(RuntimeError):
    """The method's code raised an exception on a client. The message says on which one, and when."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'lam'?)`` for the closest known word, or nothing when none is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
