"""The cores of this machine, and how many worker processes use them."""

from __future__ import annotations

import os
from typing import Literal


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def number_of_workers(workers: int | Literal["auto"] | None, threads: int) -> int:
    """The setting `workers` as a number; auto leaves each worker the cores for its threads."""
    return max(1, available_cores() // threads) if workers == "auto" else workers or 1
