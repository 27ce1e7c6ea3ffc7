"""Shared by the tests of the command line and of resuming."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from processes import Fork

# Sums depend on the number of threads, and two workers with two each would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A federation that learns two domains in well under a second, and commits every round.
TINY = [
    *("digits-shift", "domains=paper,neon", "cap=200", "model=mlp", "width=8"),
    *("rounds=3", "local_steps=3", "clients=4", "clients_per_round=2"),
    *("eval_every=1", "eval_cap=50", "checkpoint_seconds=0"),
]


@pytest.fixture(scope="session")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fork]:
    if not sys.platform.startswith("linux"):
        pytest.skip("these tests look into /proc")
    process = Fork(tmp_path_factory.mktemp("fork"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def rendered() -> Iterator[None]:
    """The embedded benchmark is rendered once for a whole module."""
    from fedspecial.data.benchmarks import digits_shift

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits_shift, "load", cache(digits_shift.load))
        yield


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """The settings of a small, fast run."""
    return TINY


@pytest.fixture(scope="session")
def whole(fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of the small run, never interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    outcome = fork("run", *TINY, f"out={folder}")
    assert outcome.code == 0, outcome.stderr
    return folder
