"""Asynchronous aggregation: steps computed by hand, the end of a task, refusals."""

from __future__ import annotations

import io
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
from torch import Tensor

from fedspecial.cli.progress import RunProgress
from fedspecial.config import Config
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.staleness import Staleness, staleness_weight
from fedspecial.engine.asynchronous import _draw_clients
from fedspecial.engine.clock import ClientClock
from fedspecial.engine.in_flight import SimulatedWork
from fedspecial.errors import InputError
from fedspecial.methods.base import ClientContext, Method
from fedspecial.methods.special import Special
from fedspecial.report.plots import _starts_of_tasks
from fedspecial.report.progress_line import ProgressLine
from fedspecial.report.trackers import TrackerListener
from fedspecial.ui.runlog import RunLog
from toy_problems import Scalar, begin, learn, play, points


def half_square(self: Method, context: ClientContext, x: Tensor, y: Tensor) -> Tensor:
    """½(w − x)²; with one step of rate ½, Δ = ½(x − w)."""
    return 0.5 * (context.model.module(x) - x).square().mean()


def weights_of(folder: Path, monkeypatch: pytest.MonkeyPatch, method: Method, **settings: Any) -> list[float]:
    """w after each server step; client m has the single number 8, in two tasks."""
    monkeypatch.setattr(Method, "loss", half_square)
    weights: list[float] = []
    run = begin(
        folder, "special", points([8.0] * 4, [8.0] * 4), module=Scalar(), clients=4, clients_per_round=4, rounds=1,
        client_lr=0.5, client_lr_decay=1.0, eval_every=0, min_per_client=0, local_epochs=1, server_lr=1.0,
        mode="async", **settings,
    )  # fmt: skip
    run.method = run.engine.runner.method = method  # type: ignore[attr-defined]
    run.federation.rows = lambda task, client: np.array([client])  # type: ignore[method-assign]
    run.listeners = (lambda event: weights.append(float(run.vector[0])) if event.event == "round" else None,)
    play(run)
    return weights


def test_an_update_that_is_three_versions_old_moves_the_model_half_as_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four clients begin at w = 0 and arrive at once, Δ = 4 each; buffer 1, so τ = 0, 1, 2, 3 and (1+3)^−½ = ½."""
    settings = {"buffer": 1, "staleness_exponent": 0.5, "scale_steps": False}
    first = weights_of(tmp_path / "run", monkeypatch, Method(), **settings)[:4]
    steps = np.diff([0.0, *first])
    assert steps == pytest.approx([4.0, 4 / math.sqrt(2), 4 / math.sqrt(3), 2.0])
    recorded = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "server_step")[:4]
    assert [event["updates"][0]["staleness"] for event in recorded] == [0, 1, 2, 3]
    assert [event["updates"][0]["weight"] for event in recorded] == pytest.approx(list(steps / 4))


def test_server_rate_and_pull_are_scaled_with_the_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Task 1, buffer 2 of 4, constant weights, γ_G = ½: w = 0 + ½·4 = 2, then 2 + ½·4 = 4. Task 2, anchor 4, Δ = 2,
    λ = 1·½: (4 + ½·2 + ½·4)/(3/2) = 14/3, then (14/3 + 1 + 2)/(3/2) = 46/9."""
    settings = {"buffer": 2, "staleness": "constant"}
    weights = weights_of(tmp_path / "run", monkeypatch, Special(lam=1.0), **settings)
    assert weights == pytest.approx([2, 4, 14 / 3, 46 / 9])


def test_dividing_by_the_sum_ignores_a_staleness_that_all_have_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"buffer": 1, "scale_steps": False, "staleness_normalise": "sum"}
    weights = weights_of(tmp_path / "run", monkeypatch, Method(), **settings)
    assert np.diff([0.0, *weights[:4]]) == pytest.approx([4.0] * 4)


def test_staleness_rules_give_a_fresh_update_the_weight_one_and_no_update_more() -> None:
    for rule in get_args(Staleness):
        weights = [staleness_weight(tau, rule, 0.5, 4.0) for tau in range(30)]
        assert weights[0] == 1.0
        assert all(0 <= later <= earlier for earlier, later in pairwise(weights))
    assert [staleness_weight(tau, "hinge", 0.5, 4.0) for tau in (4, 6)] == [1.0, 0.5]
    assert staleness_weight(3, "polynomial", 0.5, 4.0) == 0.5


@pytest.mark.parametrize("buffer", [1, 2, 3])
@pytest.mark.parametrize("latency", ["none", "exponential"])
def test_a_task_ends_after_the_same_number_of_updates_for_every_buffer(
    buffer: int, latency: str, tmp_path: Path
) -> None:
    learn(tmp_path / "run", "special", mode="async", buffer=buffer, latency=latency, drop_rate=0.2)
    events = read_events(tmp_path / "run" / "events.jsonl")
    used = Counter()
    for event in of_kind(events, "server_step"):
        used[event["task"]] += len(event["updates"])
    assert used == {1: 9, 2: 9, 3: 9}
    assert {event["reason"] for event in of_kind(events, "update_lost")} <= {"dropped out", "task ended"}


def test_work_that_began_before_a_task_border_is_dropped_and_reported(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", mode="async", buffer=1, latency="exponential")
    events = read_events(tmp_path / "run" / "events.jsonl")
    ended = of_kind(events, "update_lost")
    # Three clients are at work all the time: one arrives last, and two are dropped.
    assert Counter(event["task"] for event in ended) == {1: 2, 2: 2, 3: 2}
    assert {event["reason"] for event in ended} == {"task ended"}
    assert any("task ended (6)" in warning for warning in result.warnings)


def test_updates_above_the_largest_staleness_are_not_used(tmp_path: Path) -> None:
    learn(tmp_path / "run", "special", mode="async", buffer=1, latency="lognormal", max_staleness=1)
    events = read_events(tmp_path / "run" / "events.jsonl")
    ages = {update["staleness"] for event in of_kind(events, "server_step") for update in event["updates"]}
    assert ages == {0, 1}
    assert "too stale" in {event["reason"] for event in of_kind(events, "update_lost")}


def test_a_run_ends_although_most_clients_drop_out(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", mode="async", drop_rate=0.8, availability=0.5)
    assert result.rounds_held > 0
    assert result.certificates
    assert all(summary["asynchronous"]["updates"] == 9 for summary in result.certificates)
    assert all(summary["status"] in ("holds", "not anchored") for summary in result.certificates)
    assert result.time is not None
    assert result.time["max_staleness"] == 0


class Console:
    """What progress prints."""

    is_terminal = False

    def __init__(self) -> None:
        self.lines: list[str] = []

    def print(self, line: str, **_: Any) -> None:
        self.lines.append(line)


def test_progress_pictures_and_trackers_can_show_more_steps_than_planned(tmp_path: Path) -> None:
    """Steps without a full buffer use up versions: a task of three rounds gets more than three steps."""
    console, text, tracked, log = Console(), io.StringIO(), list[int](), RunLog()
    tracking = TrackerListener("own", tmp_path)
    tracking._tracker = SimpleNamespace(log=lambda step, values: tracked.append(step), finish=lambda: None)
    listeners = [RunProgress(console, tmp_path), ProgressLine(text), tracking]  # type: ignore[arg-type]
    learn(tmp_path / "run", "special", mode="async", drop_rate=0.6, listeners=listeners)
    events = read_events(tmp_path / "run" / "events.jsonl")
    rounds = of_kind(events, "round")
    longest = max(event["round"] for event in rounds) + 1
    assert longest > 3
    assert any(f"round {longest:2d}  accuracy" in line for line in console.lines)
    assert not any("-" in line.rpartition("  ")[2] for line in console.lines if line.endswith("s left"))
    assert f"round {longest}, accuracy" in text.getvalue()
    assert tracked == sorted(tracked)
    assert len(set(tracked)) == len(rounds)
    starts = _starts_of_tasks(rounds, 3, 3)
    assert starts[-1] == len(rounds)
    for line in (tmp_path / "run" / "events.jsonl").read_bytes().splitlines():
        log.add_line(line)
    assert log.position == log.total_rounds == len(rounds)


class CountingClock(ClientClock):
    """Counts the clients that are looked at."""

    looked: ClassVar[list[int]] = []

    def available(self, task: int, version: int, client: int) -> bool:
        self.looked.append(client)
        return super().available(task, version, client)


def drawn(clients: int, chosen: int, availability: float) -> tuple[list[int], CountingClock]:
    """The clients that start first."""
    config = Config(clients=clients, clients_per_round=chosen, mode="async", availability=availability)
    run = SimpleNamespace(config=config, federation=SimpleNamespace(clients=clients, absent=frozenset({0})))
    clock = CountingClock(config)
    clock.looked.clear()
    return _draw_clients(run, SimulatedWork(clock), 1, 0), clock  # type: ignore[arg-type]


def test_a_step_looks_only_at_the_clients_that_it_draws() -> None:
    found, clock = drawn(10**6, 10, availability=0.5)
    assert len(found) == len(set(found)) == 10
    assert len(clock.looked) < 200  # of a million; with probability ½ each, ten are found in about 20
    assert all(clock.available(1, 0, client) for client in found)


def test_all_clients_that_can_be_reached_start_if_they_are_too_few() -> None:
    found, clock = drawn(40, 40, availability=0.2)
    assert found == [client for client in range(1, 40) if clock.available(1, 0, client)]
    assert 0 < len(found) < 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"buffer": 4}, "buffer=4: at most clients_per_round=3"),
        ({"dp_clip": 1.0, "dp_noise_multiplier": 1.0}, r"mode=async: not with differential privacy \(dp_clip=1\)"),
        ({"aggregation": "median"}, "aggregation=median: not with mode=async"),
        ({"weighting": "registered"}, "weighting=registered: not with mode=async"),
        ({"estimate": True}, "estimate=true: not with mode=async"),
        ({"min_updates": 2}, "min_updates=2: only with mode=sync"),
        ({"over_select": 4, "latency": "constant"}, "over_select=4: only with mode=sync"),
        ({"deadline_seconds": 4, "latency": "constant"}, "deadline_seconds=4.0: only with mode=sync"),
        ({"max_staleness": -1}, "max_staleness=-1: "),
        ({"latency": "normal"}, "latency=normal: expected none, constant"),
    ],
)
def test_what_cannot_be_combined_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        learn(tmp_path / "run", "fedavg", mode="async", **settings)
