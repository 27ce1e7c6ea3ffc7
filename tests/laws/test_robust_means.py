"""Clipping and robust means, with numbers computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedspecial.config import Config
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.messages import Tensors
from fedspecial.engine.aggregation.robust import RobustMean, clip
from fedspecial.engine.round import run_round
from fedspecial.engine.stats import RoundStats
from fedspecial.errors import InputError
from toy_problems import begin, learn

RULES = ("median", "trimmed-mean", "krum", "geometric-median")
ENOUGH: dict[str, Any] = {"clients": 6, "clients_per_round": 5}


def aggregated(rule: str, rows: list[list[float]], max_faulty: int = 1) -> list[float]:
    mean = RobustMean(Config(aggregation=rule, max_faulty=max_faulty))  # type: ignore[arg-type]
    for row in rows:
        mean.add({"theta": torch.tensor(row)})
    return mean.result()["theta"].tolist()


def test_the_median_is_taken_in_each_coordinate() -> None:
    assert aggregated("median", [[1, 5], [2, 3], [9, -100]]) == [2, 3]
    assert aggregated("median", [[1, 0], [2, 0], [4, 0], [100, 0]]) == [3, 0]


def test_the_trimmed_mean_leaves_out_the_f_largest_and_smallest_of_each_coordinate() -> None:
    rows = [[1.0, 10.0], [2.0, 20.0], [6.0, -1e9], [4.0, 40.0], [1e9, 30.0]]
    assert aggregated("trimmed-mean", rows) == [4, 20]
    assert aggregated("trimmed-mean", rows, max_faulty=2) == [4, 20]


def test_krum_returns_the_update_with_the_nearest_neighbours() -> None:
    """n = 5, f = 1: scores over 2 neighbours are 1+4, 1+1, 1+4, 36+49 and more for the last one."""
    assert aggregated("krum", [[0.0], [1.0], [2.0], [8.0], [1000.0]]) == [1]


def test_the_geometric_median_of_a_square_with_an_outlier_is_where_the_directions_cancel() -> None:
    """For four corners of a convex quadrilateral it is the intersection of the diagonals."""
    x, y = aggregated("geometric-median", [[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 10.0]])
    assert x == pytest.approx(10 / 6, abs=1e-3)  # the diagonals y = x and y = 10 − 5x
    assert y == pytest.approx(10 / 6, abs=1e-3)


def test_the_geometric_median_of_points_on_a_line_is_their_median() -> None:
    (x,) = aggregated("geometric-median", [[0.0], [1.0], [2.0], [3.0], [1e6]])
    assert x == pytest.approx(2.0, abs=0.02)


@pytest.mark.parametrize("rule", RULES)
def test_equal_updates_are_their_own_robust_mean(rule: str) -> None:
    row = [0.1, -7.25, 3e-8]
    assert aggregated(rule, [row] * 5) == torch.tensor(row).tolist()


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_updates_does_not_matter(rule: str) -> None:
    rows = torch.randn(5, 40, generator=torch.Generator().manual_seed(1)).tolist()
    assert aggregated(rule, rows) == pytest.approx(aggregated(rule, rows[::-1]), rel=1e-6)


@pytest.mark.parametrize("rule", ["krum", "geometric-median"])
def test_distances_are_over_all_vectors_of_an_update(rule: str) -> None:
    """The third client is an outlier in the second vector only, and loses its influence on both."""
    mean = RobustMean(Config(aggregation=rule))  # type: ignore[arg-type]
    for first, second in ((0.0, 0.0), (0.0, 1.0), (9.0, 1e8), (0.0, 2.0), (0.0, 3.0)):
        mean.add({"theta": torch.tensor([first]), "generator": torch.tensor([second])})
    result = mean.result()
    assert abs(float(result["theta"])) < 1e-3
    assert 0.5 <= float(result["generator"]) <= 3


def test_clipping_scales_an_update_to_the_norm_and_leaves_a_shorter_one_alone() -> None:
    deltas: Tensors = {"theta": torch.tensor([3.0, 0.0]), "generator": torch.tensor([4.0])}
    clipped = clip(deltas, 1.0)
    assert clipped["theta"].tolist() == pytest.approx([0.6, 0.0])
    assert clipped["generator"].tolist() == pytest.approx([0.8])
    assert clip(deltas, 5.0) is deltas


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "krum": (
        {"aggregation": "krum"},
        "aggregation=krum: with max_faulty=1 it needs 5 updates, but clients_per_round=3",
    ),
    "two faulty": (
        {"aggregation": "median", "max_faulty": 2},
        "aggregation=median: with max_faulty=2 it needs 5 updates, but clients_per_round=3",
    ),
    "weights": (
        {"aggregation": "median", "weighting": "samples"},
        "aggregation=median: every client counts the same; it excludes weighting=samples",
    ),
    "personal": (
        {"aggregation": "median", "method": "pfeddil"},
        "aggregation=median: method=pfeddil averages different vectors at different clients",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_robust_mean_cannot_do_is_refused_in_one_line_before_the_run(case: str, tmp_path: Path) -> None:
    settings, message = REFUSED[case]
    with pytest.raises(InputError) as caught:
        learn(tmp_path / "run", settings.pop("method", "special"), **settings)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rule", RULES)
def test_the_certificate_holds_for_the_aggregated_step(rule: str, tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", aggregation=rule, lam=0.25, **ENOUGH)
    assert result.certificates is not None
    assert [task["status"] for task in result.certificates] == ["not anchored", "holds", "holds"]
    rounds = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
    assert not any(event["plain_sgd"] for event in rounds)


def test_clipped_updates_bound_the_step(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", clip_norm=0.01, lam=0.25)
    rounds = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
    assert all(event["max_client_delta"] <= 0.01 * (1 + 1e-6) for event in rounds)
    assert all(event["delta_norm"] <= 0.01 * (1 + 1e-6) for event in rounds)
    assert result.certificates is not None
    assert result.certificates[1]["status"] == "holds"


def test_with_fewer_updates_than_the_rule_needs_the_model_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(tmp_path / "run", aggregation="median", clients_per_round=3)
    count = RoundStats.count
    monkeypatch.setattr(
        RoundStats, "count", lambda self, reply: count(self, reply) or ("left out" if reply.client == 0 else None)
    )
    before = run.vector.clone()
    events: list[Any] = []
    run.listeners = (events.append,)
    for round in range(3):
        run_round(run, 1, round)
    held = [event.held for event in events if type(event).__name__ == "RoundFinished"]
    assert True in held
    if all(held):
        assert torch.equal(run.vector, before)
    run.log.close()
