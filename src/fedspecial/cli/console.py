"""What the command line has in common: where it writes, and how it fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console

from fedspecial.errors import InputError

# In a file or a pipe a table is not squeezed into the 80 columns of a terminal that isn't there.
_WIDTH = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120

out = Console(highlight=False, soft_wrap=True, width=_WIDTH)
err = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def one_line_errors(kind: type[Exception] = InputError) -> Iterator[None]:
    """Bad input becomes one line on standard error and exit code 2."""
    try:
        yield
    except kind as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    err.print("Error:", style="bold red", end=" ")
    err.print(" ".join(message.split()), markup=False)
    sys.exit(2)


def seeds_of(text: str) -> tuple[int, ...]:
    """The numbers that an option names, separated by commas."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"seeds={text}: expected whole numbers separated by commas") from None
    if len(set(numbers)) < len(numbers):
        raise InputError(f"seeds={text}: each can be given only once")
    return numbers
