"""The simulated clock in synchronous rounds: who is waited for, who is lost, and what it leaves unchanged."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fedspecial import methods
from fedspecial.cli.tables import time_line
from fedspecial.config import Config
from fedspecial.core.events import of_kind, read_events
from fedspecial.engine.clock import ClientClock, Work, time_round
from fedspecial.errors import InputError
from method_problems import problem_for
from toy_problems import learn


class Fixed(ClientClock):
    """Work that is given instead of drawn."""

    def __init__(self, works: dict[int, Work | None], **settings: Any) -> None:
        super().__init__(Config(clients=8, latency="constant", **settings))
        object.__setattr__(self, "works", works)

    def available(self, task: int, version: int, client: int) -> bool:
        return self.works[client] is not None  # type: ignore[attr-defined]

    def work(self, task: int, version: int, client: int) -> Work:
        return self.works[client]  # type: ignore[attr-defined, no-any-return]


def test_a_round_waits_for_its_slowest_client() -> None:
    timed = time_round(Fixed({0: Work(3.0, False), 5: Work(7.0, False)}), 1, 0, [0, 5])
    assert (timed.used, timed.seconds, dict(timed.lost)) == ([0, 5], 7.0, {})


def test_a_round_closes_at_its_deadline() -> None:
    clock = Fixed({0: Work(3.0, False), 5: Work(7.0, False)}, deadline_seconds=5.0)
    timed = time_round(clock, 1, 0, [0, 5])
    assert (timed.used, timed.seconds, timed.lost) == ([0], 5.0, {5: "after the deadline"})
    assert timed.worked == {0: 3.0, 5: 5.0}


def test_over_selection_takes_the_first_updates_and_does_not_wait_for_the_others() -> None:
    works: dict[int, Work | None] = {
        0: Work(4.0, False), 1: Work(1.0, True), 2: Work(2.0, False), 3: Work(9.0, False), 4: None, 6: Work(4.0, False),
    }  # fmt: skip
    timed = time_round(Fixed(works, clients_per_round=2, over_select=6), 1, 0, [0, 1, 2, 3, 4, 6])
    assert (timed.used, timed.seconds) == ([0, 2], 4.0)
    assert timed.lost == {1: "dropped out", 3: "not needed", 4: "not available", 6: "not needed"}
    assert timed.worked == {0: 4.0, 1: 1.0, 2: 2.0, 3: 4.0, 6: 4.0}


def test_a_round_in_which_everybody_drops_out_ends_when_the_last_one_does() -> None:
    timed = time_round(Fixed({0: Work(3.0, True), 5: Work(2.0, True)}), 1, 0, [0, 5])
    assert (timed.used, timed.seconds) == ([], 3.0)
    assert set(timed.lost.values()) == {"dropped out"}


def test_latencies_have_the_mean_the_median_and_the_speeds_that_the_settings_say() -> None:
    def drawn(**settings: Any) -> list[float]:
        clock = ClientClock(Config(latency_seconds=2.0, **settings))
        return [clock.work(1, version, 3).seconds for version in range(2000)]

    assert set(drawn(latency="constant")) == {2.0}
    assert sum(drawn(latency="exponential")) / 2000 == pytest.approx(2.0, rel=0.1)
    assert sorted(drawn(latency="lognormal", latency_spread=0.5))[1000] == pytest.approx(2.0, rel=0.1)
    slow = set(drawn(latency="constant", client_speed=1.0))
    assert len(slow) == 1  # a client keeps its speed
    assert slow != {2.0}


def test_the_share_of_dropped_and_available_clients_is_the_one_that_the_settings_say() -> None:
    clock = ClientClock(Config(drop_rate=0.3, availability=0.8))
    assert sum(clock.work(1, v, 0).drops_out for v in range(2000)) / 2000 == pytest.approx(0.3, abs=0.04)
    assert sum(clock.available(1, v, 0) for v in range(2000)) / 2000 == pytest.approx(0.8, abs=0.04)


def test_measured_latencies_are_drawn_from_the_clients_own_rows(tmp_path: Path) -> None:
    file = tmp_path / "latency.csv"
    file.write_text("client,seconds\n0,1.5\n1,30\n0,2.5\n")
    clock = ClientClock.of(Config(clients=2, clients_per_round=1, latency=str(file)))
    assert {clock.work(1, version, 0).seconds for version in range(50)} == {1.5, 2.5}
    assert {clock.work(1, version, 1).seconds for version in range(50)} == {30.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "a CSV file that can be read"),
        ("site,seconds\n0,1\n", "line 1 is site,seconds, expected client,seconds"),
        ("client,seconds\n0,1\n1,-2\n", "line 3 is '1,-2'"),
        ("client,seconds\n0,1\n1,soon\n", "line 3 is '1,soon'"),
        ("client,seconds\n0,1\n", "no row for client 1"),
    ],
)
def test_an_unusable_file_of_latencies_is_refused_with_its_line(text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "latency.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=r"^latency=") as refused:
        learn(tmp_path / "run", clients=2, clients_per_round=2, latency=str(file))
    assert message in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_latency_changes_the_time_and_nothing_else(tmp_path: Path) -> None:
    plain, timed = learn(tmp_path / "plain", "special"), learn(tmp_path / "timed", "special", latency="exponential")
    assert plain.model_sha256 == timed.model_sha256
    steps = of_kind(read_events(tmp_path / "timed" / "events.jsonl"), "server_step")
    assert len(steps) == 9
    assert all(later["time"] == before["time"] + later["waited"] for before, later in pairwise(steps))
    assert not of_kind(read_events(tmp_path / "plain" / "events.jsonl"), "server_step")


def test_the_result_says_how_much_time_clients_worked_and_lost(tmp_path: Path) -> None:
    """Constant latency of 2 s, three clients, three rounds in three tasks: 18 s, in which each client works, or drops
    out earlier."""
    result = learn(tmp_path / "whole", "special", latency="constant", latency_seconds=2.0)
    times = {"seconds": 18.0, "client_seconds": 54.0, "lost_seconds": 0.0}
    assert result.time == {**times, "mean_staleness": None, "max_staleness": None}
    assert time_line(result.time) == "simulated time 18 s   work of clients 54 s, of which 0 s lost"
    dropped = learn(tmp_path / "dropped", "special", latency="constant", latency_seconds=2.0, drop_rate=0.4).time
    assert dropped is not None
    assert 0 < dropped["lost_seconds"] < dropped["client_seconds"] < 54
    assert learn(tmp_path / "plain", "special").time is None


def test_a_round_with_too_few_updates_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    learn(tmp_path / "run", "special", drop_rate=0.5, min_updates=3)
    events = read_events(tmp_path / "run" / "events.jsonl")
    rounds = of_kind(events, "round")
    assert {event["held"] for event in rounds} == {True, False}
    assert all(event["held"] == (event["num_accepted"] < 3) for event in rounds)


@pytest.mark.parametrize("name", methods.names())
def test_every_method_survives_thirty_per_cent_of_drop_outs(name: str, tmp_path: Path) -> None:
    """The run ends, every client that was asked is accounted for, and the certificate holds."""
    problem, sizes = problem_for(name)
    result = learn(tmp_path / "run", name, problem, **sizes, drop_rate=0.3, availability=0.9, rounds=2)
    events = read_events(tmp_path / "run" / "events.jsonl")
    lost, rounds = of_kind(events, "update_lost"), of_kind(events, "round")
    counts = Counter((event["task"], event["round"]) for event in lost)
    assert len(lost) > 0
    for event in rounds:
        assert len(event["clients"]) + counts[event["task"], event["round"]] == 3
    assert {event["reason"] for event in lost} <= {"dropped out", "not available"}
    assert all(summary["status"] in ("holds", "not anchored") for summary in result.certificates or ())
    assert any("lost" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"over_select": 2, "latency": "constant"}, "over_select=2: expected at least clients_per_round=3"),
        ({"over_select": 9, "latency": "constant"}, "over_select=9: .* at most clients=4"),
        ({"over_select": 4}, "over_select=4: without latency"),
        ({"deadline_seconds": 4}, "deadline_seconds=4: without latency"),
        ({"client_speed": 0.5}, "client_speed=0.5: without latency"),
        ({"min_updates": 4}, "min_updates=4: more than clients_per_round=3"),
        ({"drop_rate": 1.0}, "drop_rate=1.0: "),
        ({"availability": 0}, "availability=0: "),
        ({"buffer": 2}, "buffer=2: only with mode=async"),
        ({"max_staleness": 2}, "max_staleness=2: only with mode=async"),
        ({"staleness": "hinge"}, "staleness=hinge: only with mode=async"),
        ({"staleness_exponent": 2}, "staleness_exponent=2: only with mode=async"),
        ({"staleness_normalise": "sum"}, "staleness_normalise=sum: only with mode=async"),
        ({"scale_steps": False}, "scale_steps=false: only with mode=async"),
        ({"latency_seconds": 5}, "latency_seconds=5: only with latency=constant, exponential or lognormal"),
        ({"latency_spread": 2, "latency": "constant"}, "latency_spread=2: only with latency=lognormal"),
    ],
)
def test_contradicting_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        learn(tmp_path / "run", **settings)
