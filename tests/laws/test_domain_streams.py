"""Streams of domains: who has which domain when, what clients train on, and what the metrics say about it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from fedspecial.config import merge_settings, resolve
from fedspecial.core.events import of_kind, read_events
from fedspecial.data.stream_schedule import Share, StreamSchedule, rows_in
from fedspecial.errors import InputError
from fedspecial.metrics.evaluation_points import average_over_time, forgetting_over_time, worst_over_time
from fedspecial.metrics.matrix import backward_transfer, final_drops, forgetting, worst_drop
from fedspecial.runs.data import make_federation
from toy_problems import growing, learn, rotated_blobs


def changes(schedule: StreamSchedule, visit: int) -> list[int]:
    """The first round in which each client has the domain of a visit and nothing else."""
    total = schedule.num_visits * schedule.rounds
    return [
        next(t for t in range(total) if schedule.shares(client, t) == (Share(visit, 1.0),))
        for client in range(schedule.clients)
    ]


def test_in_a_blend_the_share_of_the_new_domain_grows_linearly_around_the_border() -> None:
    """Four rounds around border 10: ⅛, ⅜, ⅝, ⅞ of the new domain."""
    schedule = StreamSchedule(2, 10, 3, "blended", width=4)
    new = [sum(s.part for s in schedule.shares(0, t) if s.visit == 2) for t in range(20)]
    assert new == [0.0] * 8 + [0.125, 0.375, 0.625, 0.875] + [1.0] * 8
    assert all(sum(s.part for s in schedule.shares(0, t)) == 1 for t in range(20))
    assert schedule.borders == [10]


@pytest.mark.parametrize("clients", [4, 5, 8])
@pytest.mark.parametrize(("rounds", "width"), [(10, 6), (7, 7), (4, 4)])
def test_staggered_clients_change_once_around_the_border_which_is_their_median(
    clients: int, rounds: int, width: int
) -> None:
    schedule = StreamSchedule(3, rounds, clients, "staggered", width, seed=5)
    for visit, border in ((2, rounds), (3, 2 * rounds)):
        times = changes(schedule, visit)
        assert median(times) == border
        assert all(abs(time - border) <= (width + 1) / 2 for time in times)
        assert len(set(times)) > 1
    for client in range(clients):
        visits = [schedule.shares(client, time)[0].visit for time in range(3 * rounds)]
        assert visits == sorted(visits)
        assert set(visits) == {1, 2, 3}
    assert changes(schedule, 2) != changes(StreamSchedule(3, rounds, clients, "staggered", width, seed=6), 2)


def test_recurring_domains_return_in_the_same_order() -> None:
    schedule = StreamSchedule(2, 3, 2, "recurring", passes=2)
    assert schedule.visited == [1, 2, 1, 2]
    assert schedule.borders == [3, 6, 9]


def test_samples_of_a_blend_arrive_and_leave_one_after_another() -> None:
    rows = np.arange(40)
    arriving = [set(rows_in(rows, Share(2, part), 1, 0).tolist()) for part in (0.1, 0.5, 0.9, 1.0)]
    assert [len(part) for part in arriving] == [4, 20, 36, 40]
    assert arriving == sorted(arriving, key=len)
    assert all(early <= late for early, late in pairwise(arriving))


def federation_of(**settings: Any) -> Any:
    given = {"model": "mlp", "clients": 4, "clients_per_round": 2, "alpha": 1.0, "min_per_client": 2, **settings}
    return make_federation(resolve(merge_settings(given)).config, rotated_blobs())


def test_a_domain_keeps_its_partition_when_it_returns() -> None:
    federation = federation_of(stream="recurring")
    assert federation.num_tasks == 6
    for task in (1, 2, 3):
        assert np.array_equal(federation.rows(task, 1), federation.rows(task + 3, 1))
    assert np.array_equal(federation.rows(2, 1), federation_of().rows(2, 1))


def test_in_a_blend_a_client_trains_on_its_own_samples_of_both_domains() -> None:
    federation = federation_of(stream="blended", rounds=8, blend_rounds=4)
    own = federation.client_samples(1, 2, 7)  # the second round of the blend: ⅝ of the first domain, ⅜ of the second
    first, second = (federation.client_samples(task, 2) for task in (1, 2))
    counts = [round(0.625 * len(first.rows)), round(0.375 * len(second.rows))]
    assert len(own.rows) == sum(counts)
    for part, source in ((own.samples.x[: counts[0]], first), (own.samples.x[counts[0] :], second)):
        known = {tuple(row.tolist()) for row in source.samples.x[source.rows]}
        assert {tuple(row.tolist()) for row in part} <= known


def test_metrics_of_domains_that_return_by_hand() -> None:
    """A, B, A, B over two domains. A was learned last at the third point, B at the fourth."""
    matrix, visits = [[0.8, 0.1], [0.5, 0.9], [0.7, 0.6], [0.4, 0.7]], [0, 1, 0, 1]
    assert final_drops(matrix, visits) == pytest.approx([0.4 - 0.7])
    assert backward_transfer(matrix, visits) == pytest.approx(-0.3)
    assert worst_drop(matrix, visits) == pytest.approx(-0.3)
    assert forgetting(matrix, visits) == pytest.approx(0.8 - 0.4)
    assert average_over_time(matrix) == pytest.approx([0.45, 0.7, 0.65, 0.55])
    assert worst_over_time(matrix) == [0.1, 0.5, 0.6, 0.4]
    assert forgetting_over_time(matrix, visits) == [None, pytest.approx(0.3), pytest.approx(0.3), pytest.approx(0.4)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stream": "blended", "rounds": 4, "blend_rounds": 5}, "blend_rounds=5: longer than a domain lasts"),
        ({"stream": "staggered", "rounds": 4, "stagger_rounds": 9}, "stagger_rounds=9: longer than a domain lasts"),
        ({"blend_rounds": 2}, "blend_rounds=2: only for stream=blended"),
        ({"stream": "blended", "repeats": 2}, "repeats=2: only for stream=recurring"),
        ({"detect_threshold": 2}, "detect_threshold=2: nothing is detected"),
        ({"detect": "loss", "method": "joint"}, "detect=loss: not with method=joint"),
        ({"detect": "loss", "estimate": True}, "detect=loss: not with estimate"),
        ({"detect": "loss", "dp_clip": 1, "dp_noise_multiplier": 1}, "detect=loss: not with differential privacy"),
    ],
)
def test_impossible_streams_are_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        resolve(merge_settings({"benchmark": "digits-shift", **settings}))
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("settings", [{"stream": "blended"}, {"stream": "staggered"}, {"detect": "loss"}])
def test_new_classes_have_to_be_announced(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="adds classes with every domain"):
        learn(tmp_path / "run", "fedavg", growing(), **settings)


def test_new_classes_may_return(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", growing(), stream="recurring", model="cnn", width=4)
    assert result.points == ["t1", "t2", "t1", "t2"]


@pytest.mark.usefixtures("drawn_figures")
def test_the_result_of_a_recurring_run_has_a_row_for_each_visit(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", stream="recurring", lam=0.2, pictures=True)
    assert [len(row) for row in result.matrix] == [3] * 6
    assert result.rows == ["d1", "d2", "d3"] * 2
    assert result.server_lrs == pytest.approx([1 / i for i in range(1, 7)])
    assert result.average_over_time[-1] == result.acc
    assert len(result.to_frame()) == 6
    assert "after d1" in result._repr_html_()
    rounds = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
    assert [len(r["accuracy"]) for r in rounds[::3]] == [1, 2, 3, 3, 3, 3]
