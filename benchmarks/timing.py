"""Helpers for measuring time ratios on a machine that has other work to do.

All variants are measured in one process, alternately, and the result is the median of the ratios of neighbouring
measurements. Every script measures two clocks: wall time, which includes the disk, is what a user waits for; processor
time is what the process itself used, and with one thread it hardly depends on other processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch


def arguments(
    description: str | None, add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
) -> argparse.Namespace:
    """Parse the options that all scripts have in common, and those that `add_options` adds."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small problem and few repeats")
    parser.add_argument("--repeats", type=int, help="number of repeats (default: depends on the script)")
    parser.add_argument("--threads", type=int, default=1, help="number of torch threads (default: 1)")
    add_options(parser)
    return parser.parse_args()


def set_threads(threads: int) -> None:
    """Set the number of torch threads, and print the versions and the load that belong to the result."""
    torch.set_num_threads(threads)
    load = os.getloadavg()[0]
    print(f"torch {torch.__version__}, {threads} thread(s), {os.cpu_count()} cores, load {load:.1f} at the start")


@dataclass
class Times:
    """Seconds of each repeat, by both clocks."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self, work: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)


def interleave(works: dict[str, Callable[[], object]], repeats: int, warm_up: int = 1) -> dict[str, Times]:
    """Run every function once per repeat, in alternating order, and measure each."""
    for _ in range(warm_up):
        for work in works.values():
            work()
    times = {name: Times() for name in works}
    names = list(works)
    for repeat in range(repeats):
        for name in names if repeat % 2 == 0 else reversed(names):
            times[name].measure(works[name])
    return times


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:8.3f}  [{self.low:.3f} … {self.high:.3f}]"

    @staticmethod
    def of(values: Sequence[float]) -> Quartiles:
        if len(values) < 2:
            return Quartiles(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Quartiles(low, median, high)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Quartiles:
    """Ratios repeat by repeat, because the two measurements of a pair ran under the same load."""
    return Quartiles.of([mine / other for mine, other in zip(ours, theirs, strict=True)])


def show(title: str, rows: Sequence[tuple[str, Quartiles]], unit: str = "") -> None:
    print(f"\n{title}" + (f" ({unit})" if unit else ""))
    for name, quartiles in rows:
        print(f"  {name:<38}{quartiles}")


def verdict(what: str, quartiles: Quartiles, limit: float, *, at_least: bool = False) -> None:
    """Print whether the median meets the target: at most the limit, or at least."""
    met = "met" if (quartiles.median >= limit if at_least else quartiles.median <= limit) else "NOT met"
    print(f"  target {met}: {what} {quartiles.median:.3f}, {'at least' if at_least else 'at most'} {limit:g}")
