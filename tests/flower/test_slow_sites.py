"""Slow, hanging and restarted sites in synchronous rounds, on a grid with a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flower_fixtures import federate, finished, reasons_of, rounds_of
from timed_grid import HANGS, TimedGrid, timed_grid, training

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")
_ = timed_grid
ONE_TASK = {"domains": "paper", "clients_per_round": 4}


def sites_of(run: Path) -> list[list[str]]:
    return [[update["site"] for update in line["updates"]] for line in rounds_of(run)]


def test_one_hanging_site_costs_a_round_its_grace_time_and_not_an_hour(timed_grid: TimedGrid, tmp_path: Path) -> None:
    south = timed_grid.get_node_ids()[1]
    timed_grid.delays = {south: HANGS}
    run = federate(tmp_path, grid=timed_grid, reply_seconds=3600.0, grace_seconds=30.0, **ONE_TASK)
    assert sites_of(run) == [["north", "west", "east"]] * 2
    # The first round waits for it, the second does not ask it, and its evaluation waits behind the training.
    assert 30 <= timed_grid.clock.now < 130
    assert timed_grid.trainings(south) == 1
    assert reasons_of(run)["south"] == {
        "no reply before the deadline",
        "the site is still at work on an earlier round",
    }


def test_a_late_reply_to_the_same_round_and_model_is_used_and_its_site_is_not_asked_twice(
    timed_grid: TimedGrid, tmp_path: Path
) -> None:
    undisturbed = finished(federate(tmp_path / "undisturbed", **ONE_TASK))["model_sha256"]
    south = timed_grid.get_node_ids()[1]
    timed_grid.delays = {south: training(15.0)}
    run = federate(tmp_path, grid=timed_grid, quorum=1.0, reply_seconds=10.0, **ONE_TASK)
    assert finished(run)["model_sha256"] == undisturbed
    assert timed_grid.trainings(south) == len(rounds_of(run)) == 2


def test_a_site_that_was_restarted_is_asked_again_and_takes_part_in_the_next_exchange(
    timed_grid: TimedGrid, tmp_path: Path
) -> None:
    """It is restarted while the first round waits for it, which closes without it; the second round has it."""
    south, east = timed_grid.get_node_ids()[1], timed_grid.get_node_ids()[3]
    timed_grid.delays = {south: HANGS, east: training(20.0)}
    sleep, restarted = timed_grid.clock.sleep, []

    def restart_after_five_seconds(seconds: float) -> None:
        sleep(seconds)
        if timed_grid.clock.now >= 5 and not restarted:
            restarted.append(timed_grid.restart(south))

    timed_grid.clock.sleep = restart_after_five_seconds  # type: ignore[method-assign]
    run = federate(tmp_path, grid=timed_grid, reply_seconds=3600.0, grace_seconds=30.0, **ONE_TASK)
    assert sites_of(run) == [["north", "west", "east"], ["north", "south", "west", "east"]]
    assert timed_grid.clock.now < 60


@pytest.mark.parametrize("restart", [TimedGrid.restart, TimedGrid.restart_at_once])
def test_a_site_that_was_restarted_is_asked_again_if_the_quorum_needs_it(
    restart: Callable[[TimedGrid, int], int], timed_grid: TimedGrid, tmp_path: Path
) -> None:
    undisturbed = finished(federate(tmp_path / "undisturbed", **ONE_TASK))["model_sha256"]
    south = timed_grid.get_node_ids()[1]
    timed_grid.delays = {south: HANGS}
    sleep, restarted = timed_grid.clock.sleep, []

    def restart_after_five_seconds(seconds: float) -> None:
        sleep(seconds)
        if timed_grid.clock.now >= 5 and not restarted:
            restarted.append(restart(timed_grid, south))

    timed_grid.clock.sleep = restart_after_five_seconds  # type: ignore[method-assign]
    run = federate(tmp_path, grid=timed_grid, reply_seconds=3600.0, quorum=1.0, **ONE_TASK)
    assert finished(run)["model_sha256"] == undisturbed
    assert timed_grid.clock.now < 60
