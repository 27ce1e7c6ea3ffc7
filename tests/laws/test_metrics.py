"""Metrics of the accuracy matrix: examples computed by hand, and laws for any matrix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspecial.metrics.costs import bytes_per_client, rounds_to_best
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
    assert rounds_to_best(rounds, ["a", "b"]) == 2 + 1
    assert rounds_to_best(rounds[:3], ["a", "b"]) is None


def test_bytes_are_counted_per_sampled_client() -> None:
    rounds = [{"bytes_up": 30, "clients": [1, 2, 3]}, {"bytes_up": 10, "clients": [4]}]
    assert bytes_per_client(rounds, "up") == 10
