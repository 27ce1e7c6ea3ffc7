"""Metrics of the accuracy matrix, costs and the numbers of a round: examples by hand, and laws for any matrix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedspecial.core.messages import Update
from fedspecial.engine.base import Reply
from fedspecial.engine.stats import RoundStats
from fedspecial.metrics.costs import (
    bytes_once,
    bytes_per_client,
    largest,
    rounds_to_best,
    seconds_between_tasks,
    seconds_per_round,
)
from fedspecial.metrics.matrix import average_accuracy, backward_transfer, check, final_drops, forgetting, worst_drop

HAND = [[0.9, 0.2, 0.1], [0.7, 0.8, 0.3], [0.5, 0.9, 0.6]]

matrices = st.integers(2, 5).flatmap(
    lambda size: st.lists(st.lists(st.floats(0, 1), min_size=size, max_size=size), min_size=size, max_size=size)
)


def test_metrics_equal_those_computed_by_hand() -> None:
    assert average_accuracy(HAND) == pytest.approx((0.5 + 0.9 + 0.6) / 3)
    assert final_drops(HAND) == pytest.approx([-0.4, 0.1])
    assert backward_transfer(HAND) == pytest.approx(-0.15)
    assert worst_drop(HAND) == pytest.approx(-0.4)
    assert forgetting(HAND) == pytest.approx((0.4 - 0.1) / 2)


def test_what_was_known_before_a_domain_was_learned_is_not_forgotten() -> None:
    """The second domain: 0.9 before it was learned, then 0.6 and 0.5. Lost are 0.1, not 0.4; of the first, 0.3."""
    assert forgetting([[0.8, 0.9, 0.0], [0.7, 0.6, 0.0], [0.5, 0.5, 0.4]]) == pytest.approx((0.3 + 0.1) / 2)


def test_one_task_has_no_backward_transfer() -> None:
    assert average_accuracy([[0.7]]) == 0.7
    assert backward_transfer([[0.7]]) is None
    assert worst_drop([[0.7]]) is None
    assert forgetting([[0.7]]) is None


@given(matrices)
def test_the_worst_drop_is_no_better_than_the_mean(matrix: list[list[float]]) -> None:
    worst, mean = worst_drop(matrix), backward_transfer(matrix)
    assert worst is not None
    assert mean is not None
    assert worst <= mean + 1e-12


@given(matrices)
def test_forgetting_is_at_least_minus_backward_transfer(matrix: list[list[float]]) -> None:
    """The best earlier accuracy is at least the one just after learning."""
    lost, transfer = forgetting(matrix), backward_transfer(matrix)
    assert lost is not None
    assert transfer is not None
    assert lost >= -transfer - 1e-12


@given(matrices)
def test_metrics_do_not_change_the_matrix(matrix: list[list[float]]) -> None:
    before = [list(row) for row in matrix]
    average_accuracy(matrix), backward_transfer(matrix), worst_drop(matrix), forgetting(matrix)
    assert matrix == before


@pytest.mark.parametrize("matrix", [[[0.5, 0.5]], [[0.5, 0.5], [0.5]], [[1.2]], [[float("nan")]]])
def test_an_invalid_accuracy_matrix_is_refused(matrix: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="matrix"):
        check(matrix)


def test_rounds_to_best_adds_the_first_best_round_of_each_task() -> None:
    def round_(task: int, number: int, **accuracy: float) -> dict[str, object]:
        return {"task": task, "round": number, "accuracy": accuracy}

    rounds = [
        round_(1, 0, a=0.5), round_(1, 1, a=0.8), round_(1, 2, a=0.8),
        round_(2, 0, a=0.9, b=0.4), round_(2, 1, a=0.1, b=0.3), round_(2, 2),
    ]  # fmt: skip
    assert rounds_to_best(rounds[:3], ["a"]) == 2
    assert rounds_to_best(rounds, ["a", "b"]) == 2 + 1
    assert rounds_to_best(rounds[:3], ["a", "b"]) is None


def test_bytes_are_counted_per_sampled_client() -> None:
    rounds = [{"bytes_up": 30, "clients": [1, 2, 3]}, {"bytes_up": 10, "clients": [4]}]
    assert bytes_per_client(rounds, "up") == 10


def test_what_is_sent_once_is_counted_apart() -> None:
    """Two rounds with three chosen clients in all: 90 of 150 bytes are payloads. Queries cost 30."""
    rounds = [
        {"bytes_down": 120, "bytes_once": 90, "clients": [1, 2]},
        {"bytes_down": 30, "bytes_once": 0, "clients": [3]},
    ]
    queries = [{"bytes_up": 5, "bytes_down": 20}, {"bytes_up": 1, "bytes_down": 4}]
    assert bytes_per_client(rounds, "down") == (150 - 90) / 3
    assert bytes_once(rounds, queries, clients=4, tasks=2) == (90 + 30) / 8


def test_times_are_means_per_round_and_per_task() -> None:
    assert seconds_per_round([{"seconds": 1.0}, {"seconds": 2.0}]) == 1.5
    assert seconds_between_tasks([{"seconds": 1.0}, {"seconds": 2.0}, {"seconds": 3.0}], tasks=4) == 1.5
    assert largest([{"memory": 3}, {"memory": 7}, {"memory": 5}], "memory") == 7


def test_the_numbers_of_a_round_are_those_of_the_usable_replies() -> None:
    """Two updates, one that is refused and a client without one. What was sent counts in any case. Of three values, two
    are weights: the norms are 5 and 1, whatever the third value is."""
    sent = {"theta": torch.zeros(3)}

    def update(values: list[float], steps: int, samples: int, loss: float, grad: float) -> Update:
        return Update(0, {"theta": torch.tensor(values)}, steps, samples, loss, {"max_grad": grad})

    stats = RoundStats(num_weights=2, quorum=2)
    replies = [
        Reply(0, update([3.0, 4.0, 100.0], 2, 10, 1.0, 6.0), None, 1, 10, 4, sent, 100, 50),
        Reply(1, update([0.0, 1.0, 100.0], 5, 30, 4.0, 2.0), None, 2, 20, 5, sent, 300, 20),
        Reply(2, update([0.0, float("nan"), 0.0], 9, 90, 9.0, 9.0), None, 4, 40, 6, sent, 200, 10),
        Reply(3, None, "it has no data", 8, 80, 7),
    ]
    assert stats.held
    assert [stats.count(reply) for reply in replies] == [None, None, "'theta' contains NaN or Inf", "it has no data"]
    assert stats.held
    for reply in replies[:2]:
        assert reply.update is not None
        stats.accept(reply.update)
    assert not stats.held
    found = stats.fields()
    expected = {
        "num_accepted": 2, "held": False, "mean_steps": 3.5, "samples": 40, "loss": 2.5, "max_client_delta": 5.0,
        "max_grad": 6.0, "bytes_up": 15, "bytes_down": 150, "bytes_once": 22, "client_memory_bytes": 300,
        "client_memory_paper_bytes": 50,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
