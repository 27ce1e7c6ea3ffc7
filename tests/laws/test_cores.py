"""Runs × workers × threads: not more than the cores of the machine unless the user asks for more."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspecial.runs import cores, job_pools
from fedspecial.runs.jobs import Job

Workers = int | str | None


def jobs(count: int, workers: Workers, threads: int) -> list[Job]:
    given: dict[str, Any] = {"threads": threads} if workers is None else {"threads": threads, "workers": workers}
    return [Job("fedavg", seed, given, Path(str(seed))) for seed in range(count)]


def processes(machine: int, planned: list[Job], parallel: int | None) -> tuple[int, int]:
    """How many runs are executed at the same time on such a machine, and how many workers each of them has."""
    with (
        patch.object(cores, "available_cores", lambda: machine),
        patch.object(job_pools, "available_cores", lambda: machine),
    ):
        runs = job_pools.local_runs(planned, parallel)
        settings = job_pools.sharing_cores(planned[0], runs).settings
        return runs, cores.number_of_workers(settings.get("workers"), settings["threads"])


@pytest.mark.parametrize(
    ("workers", "threads", "parallel", "expected"),
    [
        (None, 1, None, (8, 1)),
        (2, 1, None, (4, 2)),
        (2, 2, None, (2, 2)),
        ("auto", 1, None, (1, 8)),
        ("auto", 2, None, (1, 4)),
        ("auto", 1, 4, (4, 2)),  # four runs were asked for, and auto is what is left for each
        ("auto", 2, 3, (3, 1)),
        (3, 2, 4, (4, 3)),  # all of them were asked for
    ],
)
def test_what_a_machine_with_eight_cores_executes(
    workers: Workers, threads: int, parallel: int | None, expected: tuple[int, int]
) -> None:
    assert processes(8, jobs(20, workers, threads), parallel) == expected


@given(st.integers(1, 64), st.integers(1, 30), st.sampled_from([None, "auto", 1, 2, 5]), st.integers(1, 4))
def test_without_a_number_of_runs_the_cores_are_not_exceeded(
    machine: int, count: int, workers: Workers, threads: int
) -> None:
    """Unless one run alone needs more than the machine has, which the user asked for."""
    runs, each = processes(machine, jobs(count, workers, threads), None)
    assert runs == 1 or runs * each * threads <= machine


def test_fewer_runs_than_cores_are_all_executed_at_once() -> None:
    assert processes(8, jobs(3, None, 1), None) == (3, 1)


def test_stopping_the_runs_ends_no_other_process_of_the_callers_program() -> None:
    other = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    other.start()
    try:
        with job_pools.open_pool(jobs(1, None, 1), 1, time.sleep) as pool:
            pool.stop()
        other.join(0.5)
        assert other.exitcode is None
    finally:
        other.kill()
        other.join()
