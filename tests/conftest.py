"""Shared by the tests of the command line and of resuming."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from figures import blank, drawn
from processes import Fork

# An example may take any time: how long it takes says something about the load of the machine, not about the code.
settings.register_profile("any-load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-load")

# Sums depend on the number of threads, and test workers with several threads each would compete for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Background jobs of a shell ignore Ctrl-C, and so would every process that a test starts in order to interrupt it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A run that learns two domains in well under a second and writes a checkpoint after every round.
TINY = [
    *("digits-shift", "domains=paper,neon", "cap=200", "model=mlp", "width=8"),
    *("rounds=3", "local_steps=3", "clients=4", "clients_per_round=2"),
    *("eval_every=1", "eval_cap=50", "checkpoint_seconds=0"),
]

# Imported once by the server that forks worker processes, and by none of them again.
PRELOADED = [
    "fedspecial.runs.execute",
    "fedspecial.runs.jobs",
    "fedspecial.engine.pools.workers",
    "fedspecial.methods.srfdil",
]


@pytest.fixture(autouse=True)
def _enabled_logs() -> Iterator[None]:
    """Libraries that configure logging in one test would switch off the logs that another test reads."""
    logging.disable(logging.NOTSET)
    logging.getLogger().setLevel(logging.WARNING)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fedspecial", "fedspecial.flower"):
            logging.getLogger(name).setLevel(logging.NOTSET)
            patch.setattr(logging.getLogger(name), "disabled", False)
            patch.setattr(logging.getLogger(name), "propagate", True)
        yield


@pytest.fixture(scope="session", autouse=True)
def _unsynced_files() -> Iterator[None]:
    """Files are not synced to the disk: this protects them from a power failure, which no test can cause, and thousands
    of small files would wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # it fails for a closed file, as fsync does
        yield


@pytest.fixture(scope="session", autouse=True)
def _quickly_started_processes() -> Iterator[None]:
    """Worker processes are forked from a server that has imported torch: they start in milliseconds, not in seconds.

    They have the environment of the time when the first of them was started. Tests that start the command line in a new
    Python start its workers as a user does.
    """
    get_context = multiprocessing.get_context
    multiprocessing.set_forkserver_preload(PRELOADED)

    def quick(method: str | None = None) -> Any:
        return get_context("forkserver" if method == "spawn" else method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", quick)
        yield


@pytest.fixture(scope="session")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fork]:
    if not sys.platform.startswith("linux"):
        pytest.skip("these tests read /proc")
    process = Fork(tmp_path_factory.mktemp("fork"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def rendered() -> Iterator[None]:
    """The domains of the embedded benchmark are rendered once."""
    from rendered_digits import rendered_once

    with rendered_once():
        yield


@pytest.fixture(scope="session", autouse=True)
def _blank_figures() -> Iterator[None]:
    """Figures are written, but not drawn: drawing those of a small run takes five times as long as the run."""
    with blank():
        yield


@pytest.fixture
def drawn_figures() -> Iterator[None]:
    """For tests about figures."""
    with drawn():
        yield


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """The settings of a small, fast run."""
    return TINY


@pytest.fixture(scope="session")
def finished_run(fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of the small run, finished without an interruption."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    outcome = fork("run", *TINY, f"out={folder}", draw=True)
    assert outcome.code == 0, outcome.stderr
    return folder
