"""Shared by all commands: the consoles, and how errors are shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console

from fedspecial.errors import InputError

# Tables in a file or a pipe need not fit into the 80 columns of a terminal.
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
    """The seeds in an option: whole numbers separated by commas."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"seeds={text}: expected whole numbers separated by commas") from None
    if len(set(numbers)) < len(numbers):
        raise InputError(f"seeds={text}: a seed can be given only once")
    return numbers
