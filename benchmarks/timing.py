"""Ratios that survive a noisy machine: the rivals take turns within one run, and the middle of the turns counts.

Every script here measures both clocks. Wall time is what a user waits for, the disk included; processor time is what
the process itself used, and on one thread hardly depends on what else the machine is doing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch


def arguments(description: str | None) -> argparse.Namespace:
    """The flags that all scripts share."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few turns only: does it run, roughly how fast")
    parser.add_argument("--turns", type=int, help="how many turns to take (default: the script's own)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1)")
    return parser.parse_args()


def pin(threads: int) -> None:
    """A fixed number of threads, and nothing waiting for two cores where one was asked for."""
    torch.set_num_threads(threads)
    load = os.getloadavg()[0]
    print(f"torch {torch.__version__}, {threads} thread(s), {os.cpu_count()} cores, load {load:.1f} at the start")


@dataclass
class Times:
    """Seconds of each turn, by both clocks."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def take(self, work: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)


def take_turns(works: dict[str, Callable[[], object]], turns: int, warm_up: int = 1) -> dict[str, Times]:
    """Every work once per turn, in alternating order."""
    for _ in range(warm_up):
        for work in works.values():
            work()
    times = {name: Times() for name in works}
    names = list(works)
    for turn in range(turns):
        for name in names if turn % 2 == 0 else reversed(names):
            times[name].take(works[name])
    return times


@dataclass(frozen=True)
class Spread:
    """The middle of some values and the quartiles around it."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:8.3f}  [{self.low:.3f} … {self.high:.3f}]"

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return Spread(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(low, median, high)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Quotients turn by turn: both halves of a pair saw the same neighbours."""
    return Spread.of([mine / other for mine, other in zip(ours, theirs, strict=True)])


def show(title: str, rows: Sequence[tuple[str, Spread]], unit: str = "") -> None:
    print(f"\n{title}" + (f" ({unit})" if unit else ""))
    for name, spread in rows:
        print(f"  {name:<38}{spread}")


def verdict(what: str, spread: Spread, limit: float) -> None:
    """One line: the target, the median, and whether it is met."""
    word = "met" if spread.median <= limit else "NOT met"
    print(f"  target {word}: {what} {spread.median:.3f}, at most {limit:g}")
