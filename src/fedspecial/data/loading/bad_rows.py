"""Samples that cannot be read: either the first one stops the load, or each is skipped and counted.

The command line imports this module at its start, so NumPy is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from fedspecial.errors import InputError

if TYPE_CHECKING:
    import numpy as np

OnBad = Literal["stop", "skip"]
Notice = Callable[[str], None]
"""Called with one line of text about something the user should know."""
Chunk: TypeAlias = "tuple[np.ndarray, np.ndarray]"
"""Some inputs and their labels. Readers yield chunks so that memory use does not grow with the data set."""


def ignore(*_: object) -> None:
    """The default callback: does nothing."""


@dataclass
class BadRows:
    """The bad samples of one part of a domain, as (row, message)."""

    policy: OnBad = "stop"
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, row: int, message: str) -> None:
        if self.policy == "stop":
            raise InputError(message)
        self.found.append((row, message))

    def good_rows(self, count: int) -> np.ndarray:
        """The row numbers out of `count` that are not bad."""
        import numpy as np

        good = np.ones(count, dtype=bool)
        good[[row for row, _ in self.found]] = False
        return np.flatnonzero(good)


def report_skipped(part: str, found: Sequence[tuple[int, str]], notice: Notice) -> None:
    """One line with the number of skipped samples and the first reason."""
    if found:
        count = "1 sample" if len(found) == 1 else f"{len(found)} samples"
        notice(f"{part}: {count} skipped; first: {found[0][1]}")


def check_labels(labels: np.ndarray, num_classes: int, file: str, bad: BadRows) -> None:
    """Each label outside the label set is one bad sample, reported by file and row (counted from 1)."""
    import numpy as np

    for row in np.flatnonzero((labels < 0) | (labels >= num_classes)):
        bad.add(int(row), f"{file}: row {row + 1}: label {labels[row]} is outside 0…{num_classes - 1}")


def good_chunk(x: np.ndarray, y: np.ndarray, bad: BadRows) -> Iterator[Chunk]:
    """All samples that are not bad, as one chunk."""
    if not bad.found:
        yield x, y
        return
    rows = bad.good_rows(len(y))
    yield x[rows], y[rows]
