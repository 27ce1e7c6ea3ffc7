"""Asynchronous mode on Flower, on a grid with a fake clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import federate, finished, grid_of, rounds_of
from timed_grid import HANGS, TimedGrid, timed_grid, training

from fedspecial.core.events import of_kind, read_events
from fedspecial.errors import InputError
from fedspecial.flower.governance.audit import read_lines, verify

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")
_ = timed_grid
ASYNCHRONOUS: dict[str, Any] = {"domains": "paper", "clients_per_round": 4, "mode": "async", "buffer": 2, "rounds": 8}


def updates_of(run: Path, site: int) -> list[dict[str, Any]]:
    steps = of_kind(read_events(run / "events.jsonl"), "server_step")
    return [update for step in steps for update in step["updates"] if update["client"] == site]


def test_a_site_ten_times_slower_contributes_with_its_staleness_and_holds_nobody_up(
    timed_grid: TimedGrid, tmp_path: Path
) -> None:
    """32 updates of which the three fast sites send three per second, so that it takes about 11 seconds."""
    north, south, west, east = timed_grid.get_node_ids()
    timed_grid.delays = {south: training(10.0)} | {node: training(1.0) for node in (north, west, east)}
    run = federate(tmp_path, grid=timed_grid, reply_seconds=3600.0, grace_seconds=5.0, **ASYNCHRONOUS)
    assert timed_grid.clock.now < 40
    (slow,) = updates_of(run, 1)
    assert slow["version"] == 0
    assert slow["staleness"] >= 8
    assert slow["weight"] == pytest.approx((1 + slow["staleness"]) ** -0.5 / 2)
    assert len(updates_of(run, 0)) >= 8
    audited = [line for line in read_lines(run / "audit.jsonl") if line["event"] == "server_step"]
    assert sum(len(line["updates"]) for line in audited) == 32
    assert {"site", "version", "staleness", "weight"} <= audited[-1]["updates"][0].keys()
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


def test_a_hanging_and_a_restarted_site_do_not_stop_the_others(timed_grid: TimedGrid, tmp_path: Path) -> None:
    north, south, west, east = timed_grid.get_node_ids()
    timed_grid.delays = {south: HANGS, north: HANGS} | {node: training(1.0) for node in (west, east)}
    sleep, restarted = timed_grid.clock.sleep, []

    def restart_after_five_seconds(seconds: float) -> None:
        sleep(seconds)
        if timed_grid.clock.now >= 5 and not restarted:
            restarted.append(timed_grid.restart(south))

    timed_grid.clock.sleep = restart_after_five_seconds  # type: ignore[method-assign]
    run = federate(tmp_path, grid=timed_grid, reply_seconds=3600.0, grace_seconds=5.0, **ASYNCHRONOUS)
    lost = of_kind(read_events(run / "events.jsonl"), "update_lost")
    assert (1, "dropped out") in {(event["client"], event["reason"]) for event in lost}
    assert (0, "task ended") in {(event["client"], event["reason"]) for event in lost}
    assert updates_of(run, 1)  # after its restart
    assert not updates_of(run, 0)


def test_without_delays_and_with_a_full_buffer_the_model_is_that_of_synchronous_rounds(tmp_path: Path) -> None:
    settings = {"domains": "paper", "clients_per_round": 4}
    sync = finished(federate(tmp_path / "sync", **settings))
    asynchronous = federate(tmp_path / "async", mode="async", buffer=4, **settings)
    assert finished(asynchronous)["model_sha256"] == sync["model_sha256"]
    assert [line["outcome"] for line in rounds_of(asynchronous)] == ["completed"] * 2


def test_a_server_that_was_stopped_asks_the_sites_again(timed_grid: TimedGrid, tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if event.event == "round" and event.round == 5:
            raise KeyboardInterrupt

    settings = {**ASYNCHRONOUS, "rounds": 4}
    with pytest.raises(KeyboardInterrupt):
        federate(tmp_path, grid=timed_grid, listeners=(stop,), **settings)
    run = federate(tmp_path, grid=timed_grid, **settings)
    events = read_events(run / "events.jsonl")
    assert sum(len(event["updates"]) for event in of_kind(events, "server_step")) == 16


def test_a_federation_stops_if_no_site_does_what_it_is_asked_for(tmp_path: Path) -> None:
    """Four sites and one retry: after more than eight refusals without a usable update."""
    grid = grid_of(tmp_path, methods=["fedavg"])
    with pytest.raises(InputError, match=r"^retries=1: no usable update in the last \d+ requests to sites"):
        federate(tmp_path, grid=grid, **ASYNCHRONOUS)


def test_a_federation_stops_at_a_task_of_which_no_site_has_samples(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^task 1: no site has samples of it or allows it"):
        federate(tmp_path, grid=grid_of(tmp_path, min_group=10**6), **ASYNCHRONOUS)


def test_simulated_latency_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^latency, availability, drop_rate: only in simulations"):
        federate(tmp_path, latency="constant")


def test_an_evaluation_that_is_told_the_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^bank_choice=task: a comparison for simulations"):
        federate(tmp_path, batch_norm="bank", bank_choice="task")
