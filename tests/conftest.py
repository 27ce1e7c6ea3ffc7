"""Shared by the tests of the command line and of resuming."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from processes import Fork

# Sums depend on the number of threads, and test workers with several threads each would compete for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A run that learns two domains in well under a second and writes a checkpoint after every round.
TINY = [
    *("digits-shift", "domains=paper,neon", "cap=200", "model=mlp", "width=8"),
    *("rounds=3", "local_steps=3", "clients=4", "clients_per_round=2"),
    *("eval_every=1", "eval_cap=50", "checkpoint_seconds=0"),
]


@pytest.fixture(scope="session")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fork]:
    if not sys.platform.startswith("linux"):
        pytest.skip("these tests read /proc")
    process = Fork(tmp_path_factory.mktemp("fork"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def rendered() -> Iterator[None]:
    """The embedded benchmark is rendered once per test module."""
    from fedspecial.data.benchmarks import digits_shift

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits_shift, "load", cache(digits_shift.load))
        yield


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """The settings of a small, fast run."""
    return TINY


@pytest.fixture(scope="session")
def finished_run(fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of the small run, finished without an interruption."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    outcome = fork("run", *TINY, f"out={folder}")
    assert outcome.code == 0, outcome.stderr
    return folder
