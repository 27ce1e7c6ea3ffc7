"""What all readers share: what was asked for, how a bad sample is met, and where files are looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedspecial.errors import InputError

OnBad = Literal["stop", "skip"]
Notice = Callable[[str], None]
Tick = Callable[[int, int], None]
Chunk = tuple[np.ndarray, np.ndarray]
"""Some inputs and their labels: readers hand out chunks so that memory does not grow with the data."""


def silent(*_: object) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Request:
    """What a loader is asked for. `fresh` reads the files again although a cache of them exists."""

    root: Path
    domains: tuple[str, ...]
    seed: int
    cap: int | None = None
    image_size: int | None = None
    on_bad: OnBad = "stop"
    cache: Path | None = None
    fresh: bool = False
    notice: Notice = silent
    tick: Tick = silent
    places: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def shown(self, path: Path) -> str:
        """A path as the user knows it: relative to the data folder."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def place(self, domain: str) -> str:
        """Where a person gets the files of a domain, ready to stand at the end of a message."""
        where = self.places.get(domain) or self.places.get("")
        return f" (get it from {where})" if where else ""

    def find(self, domain: str, *candidates: str) -> Path:
        """The first of several usual places that exists."""
        for candidate in candidates:
            if (self.root / candidate).exists():
                return self.root / candidate
        raise InputError(f"{candidates[0]}: not in the data folder {self.root}{self.place(domain)}")


@dataclass
class Bad:
    """The bad samples of one part of a domain: the first one stops the reading, or each is counted."""

    policy: OnBad = "stop"
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, row: int, line: str) -> None:
        if self.policy == "stop":
            raise InputError(line)
        self.found.append((row, line))

    def keep(self, rows: int) -> np.ndarray:
        """The rows that are left of so many."""
        kept = np.ones(rows, dtype=bool)
        kept[[row for row, _ in self.found]] = False
        return np.flatnonzero(kept)


def tell_skipped(what: str, found: Sequence[tuple[int, str]], notice: Notice) -> None:
    """One line that says how many samples were left out, and the first reason."""
    if found:
        count = "1 sample" if len(found) == 1 else f"{len(found)} samples"
        notice(f"{what}: {count} skipped; first: {found[0][1]}")


def check_labels(labels: np.ndarray, num_classes: int, where: str, bad: Bad) -> None:
    """Each label outside the set is one bad sample, named by file and row (counted from 1)."""
    for row in np.flatnonzero((labels < 0) | (labels >= num_classes)):
        bad.add(int(row), f"{where}: row {row + 1}: label {labels[row]} is outside 0…{num_classes - 1}")


def kept_chunk(x: np.ndarray, y: np.ndarray, bad: Bad) -> Iterator[Chunk]:
    """All that was not bad, as one chunk."""
    if not bad.found:
        yield x, y
        return
    rows = bad.keep(len(y))
    yield x[rows], y[rows]
