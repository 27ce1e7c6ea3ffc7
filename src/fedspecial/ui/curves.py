"""Curves and the table of participants in bounded memory, however many rounds a run has.

Rounds are collected in buckets of equal width. When there are too many buckets, the width doubles and neighbours are
merged. A bucket of a curve keeps its smallest and its largest value, so that no peak disappears.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedspecial.ui.files import number_of

Bucket = tuple[int, float, int, float]  # round and value of the smallest, round and value of the largest


class CurveTable:
    """Named curves over rounds, which count from 1."""

    def __init__(self, buckets: int = 400) -> None:
        self._limit = buckets
        self.width = 1
        self._length = 0
        self._columns: dict[str, list[Bucket | None]] = {}

    def add(self, at: int, values: Mapping[str, float | None]) -> None:
        while (index := (at - 1) // self.width) >= self._limit:
            self._double()
        self._length = max(self._length, index + 1)
        for name, value in values.items():
            if value is None:
                continue
            column = self._columns.setdefault(name, [])
            if index >= len(column):
                column.extend([None] * (index + 1 - len(column)))
            bucket = column[index] if self.width > 1 else None  # a round that is repeated replaces what it was
            if bucket is None or value < bucket[1] or value > bucket[3]:
                column[index] = _merged(bucket, (at, value, at, value))

    def _double(self) -> None:
        self.width *= 2
        self._length = -(-self._length // 2)
        for name, column in self._columns.items():
            column.extend([None] * (len(column) % 2))
            self._columns[name] = [_merged(*pair) for pair in zip(column[::2], column[1::2], strict=True)]

    def to_json(self, names: Iterable[str]) -> dict[str, Any]:
        """One point per round, or two per bucket in the order in which they occurred: all curves share their rounds."""
        step = 1 if self.width == 1 else 2
        rounds = [1 + (index * self.width) // step for index in range(self._length * step)]
        columns = {}
        for name in names:
            values: list[float | None] = [None] * len(rounds)
            for index, bucket in enumerate(self._columns.get(name, ())):
                if bucket is None:
                    continue
                low_at, low, high_at, high = bucket
                first, second = (low, high) if low_at <= high_at else (high, low)
                values[index * step] = number_of(first)
                if step == 2:
                    values[index * step + 1] = number_of(second)
            columns[name] = values
        return {"width": self.width, "rounds": rounds, "columns": columns}


def _merged(first: Bucket | None, second: Bucket | None) -> Bucket | None:
    if first is None or second is None:
        return first or second
    low = min(first[:2], second[:2], key=lambda part: part[1])
    high = max(first[2:], second[2:], key=lambda part: part[1])
    return (*low, *high)


class ParticipationGrid:
    """How often each client took part, and how often its update was refused, by rounds.

    With many clients, a row is a group of neighbours; with many rounds, a column is a group of rounds.
    """

    def __init__(self, clients: int, rows: int = 40, columns: int = 240) -> None:
        self.clients, self._columns = clients, columns
        self.group = max(1, -(-clients // rows))
        self.width = 1
        self._rows = -(-clients // self.group)
        self._used: list[list[int]] = []
        self._refused: list[list[int]] = []

    def add(self, at: int, clients: Iterable[int], refused: Iterable[int] = ()) -> None:
        while (index := (at - 1) // self.width) >= self._columns:
            self._double()
        while len(self._used) <= index:
            self._used.append([0] * self._rows)
            self._refused.append([0] * self._rows)
        for counts, found in ((self._used[index], clients), (self._refused[index], refused)):
            for client in found:
                if isinstance(client, int) and 0 <= client < self.clients:
                    counts[client // self.group] += 1

    def _double(self) -> None:
        self.width *= 2
        self._used, self._refused = _paired(self._used), _paired(self._refused)

    def to_json(self) -> dict[str, Any]:
        """used, refused: one list per column, with one count per row."""
        sizes = {"clients": self.clients, "group": self.group, "width": self.width, "rows": self._rows}
        return {**sizes, "used": self._used, "refused": self._refused}


def _paired(columns: list[list[int]]) -> list[list[int]]:
    pairs = [columns[index : index + 2] for index in range(0, len(columns), 2)]
    return [[sum(counts) for counts in zip(*pair, strict=True)] for pair in pairs]
