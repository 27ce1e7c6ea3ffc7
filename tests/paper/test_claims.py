"""Verdicts: clear differences decide; small differences and missing runs leave a claim undecided."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from fedspecial.paper.claims.base import FAILS, HOLDS, UNDECIDED, BenchmarkResults, advantage, clear
from fedspecial.paper.claims.methods import AtMost, Best, Better, Positive
from fedspecial.paper.claims.sweeps import BetterSomewhere, NearBest, Peaks, Rises
from fedspecial.paper.grid import StudyRequest, StudyResults
from fedspecial.paper.registry import find

Values = Mapping[tuple[str, float | None], Mapping[int, float]]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Values], BenchmarkResults]:
    """The results of a study with given metrics: (row, swept value) → value by seed."""

    def make(study: str, values: Values) -> BenchmarkResults:
        study_results = StudyResults(find(study), StudyRequest(study, "cpu"), {}, {}, {})
        monkeypatch.setattr(StudyResults, "values", lambda self, benchmark, row, x, key: dict(values.get((row, x), {})))
        return BenchmarkResults(study_results, "digit10")

    return make


def test_a_difference_is_clear_if_it_is_larger_than_its_standard_deviation() -> None:
    assert clear([1.0, 1.1, 0.9]) == 1
    assert clear([-1.0, -1.1, -0.9]) == -1
    assert clear([2.0, -1.0, 0.5]) == 0
    assert clear([5.0]) == 0, "one seed has no standard deviation"
    assert clear([0.0, 0.0]) == 0


def test_differences_are_taken_seed_by_seed() -> None:
    one, other = {25: 50.0, 225: 90.0}, {225: 89.0, 25: 49.0, 2025: 10.0}
    assert advantage(one, other) == [1.0, 1.0]
    assert advantage(one, other, better=-1) == [-1.0, -1.0]


def all_rows(special: float, others: float) -> dict[tuple[str, float | None], dict[int, float]]:
    rows = [row.key for row in find("main").rows]
    return {(row, None): {25: others, 225: others + 1} for row in rows} | {
        ("special", None): {25: special, 225: special + 1.1}
    }


def test_the_best_must_be_clearly_above_every_other_method(results) -> None:
    assert Best("acc").judge(results("main", all_rows(70, 60))).verdict == HOLDS
    assert Best("acc").judge(results("main", all_rows(50, 60))).verdict == FAILS
    assert Best("acc").judge(results("main", all_rows(60, 60))).verdict == UNDECIDED


def test_a_missing_method_leaves_the_claim_undecided_but_a_better_one_refutes_it(results) -> None:
    values = all_rows(70, 60)
    del values["mfcl", None]
    assert Best("acc").judge(results("main", values)).verdict == UNDECIDED
    values["srfdil", None] = {25: 80.0, 225: 81.0}
    assert Best("acc").judge(results("main", values)).verdict == FAILS


def test_rows_that_are_not_in_the_paper_do_not_count_for_best(results) -> None:
    values = all_rows(70, 60) | {("fedavg server_lr=1", None): {25: 90.0, 225: 91.0}}
    assert Best("acc").judge(results("main", values)).verdict == HOLDS
    assert Better("acc", "special", "fedavg server_lr=1").judge(results("main", values)).verdict == FAILS


def test_for_costs_lower_is_better(results) -> None:
    values = {("special", None): {25: 10.0, 225: 11.0}, ("fedavg", None): {25: 20.0, 225: 21.5}}
    assert Better("rounds_to_best", "special", "fedavg").judge(results("costs", values)).verdict == HOLDS
    assert AtMost("memory", "special", "fedavg").judge(results("costs", values)).verdict == HOLDS
    assert AtMost("memory", "fedavg", "special", 1.5).judge(results("costs", values)).verdict == FAILS
    assert AtMost("memory", "special", "mfcl").judge(results("costs", values)).verdict == UNDECIDED


def along(study: str, *means: float, row: str = "special") -> dict[tuple[str, float | None], dict[int, float]]:
    xs = find(study).sweep.values["cpu"]
    return {(row, x): {25: mean, 225: mean + 0.1} for x, mean in zip(xs, means, strict=False)}


def test_rises_requires_a_clear_increase_from_end_to_end_and_no_clear_step_back(results) -> None:
    assert Rises("acc").judge(results("rounds", along("rounds", 1, 2, 3, 4, 5))).verdict == HOLDS
    assert Rises("acc").judge(results("rounds", along("rounds", 1, 2, 9, 4, 5))).verdict == FAILS
    assert Rises("acc", sign=-1).judge(results("rounds", along("rounds", 5, 4, 3, 2, 1))).verdict == HOLDS
    assert Rises("acc").judge(results("rounds", along("rounds", 1, 2, 3))).verdict == UNDECIDED, (
        "two values are missing"
    )


def test_a_peak_is_inside_the_sweep_and_above_both_ends(results) -> None:
    assert Peaks("acc").judge(results("rounds", along("rounds", 1, 2, 9, 4, 5))).verdict == HOLDS
    assert Peaks("acc").judge(results("rounds", along("rounds", 1, 2, 3, 4, 5))).verdict == FAILS
    assert Peaks("bwt", sign=-1).judge(results("rounds", along("rounds", 5, 2, 1, 4, 5))).verdict == HOLDS


def test_near_best_requires_both_neighbours_of_the_best_value(results) -> None:
    assert NearBest("acc", 0.6).judge(results("rounds", along("rounds", 1, 8.5, 9, 8.8, 5))).verdict == HOLDS
    assert NearBest("acc", 0.6).judge(results("rounds", along("rounds", 1, 8.5, 9, 2, 5))).verdict == UNDECIDED
    at_the_end = NearBest("acc", 0.6).judge(results("rounds", along("rounds", 9, 8.9, 5, 4, 3)))
    assert at_the_end.verdict == UNDECIDED, "the true best value may be outside the sweep"
    judgement = NearBest("acc", 0.6).judge(results("rounds", along("rounds", 1, 2, 9, 2, 5)))
    assert judgement.verdict == FAILS
    assert judgement.ours == "best at 10; within 0.6 points at 10"


def test_better_somewhere_holds_with_one_better_value_and_fails_if_all_are_worse(results) -> None:
    ahead, fedavg = BetterSomewhere("acc", "special", "fedavg"), along("rounds", 5, 5, 5, 5, 5, row="fedavg")
    won = ahead.judge(results("rounds", along("rounds", 1, 2, 9, 4, 5) | fedavg))
    assert (won.verdict, won.ours) == (HOLDS, "difference 1: −4.0, 5: −3.0, 10: +4.0, 20: −1.0, 30: +0.0")
    assert ahead.judge(results("rounds", along("rounds", 1, 2, 3, 4, 4) | fedavg)).verdict == FAILS
    assert ahead.judge(results("rounds", along("rounds", 1, 2, 3, 4, 5) | fedavg)).verdict == UNDECIDED
    assert ahead.judge(results("rounds", along("rounds", 1, 2, 3) | fedavg)).verdict == UNDECIDED, "two are missing"


def test_positive_requires_values_clearly_above_zero(results) -> None:
    assert (
        Positive("first_gain", "special").judge(results("location", {("special", None): {1: 1, 2: 1.5}})).verdict
        == HOLDS
    )
    assert (
        Positive("first_gain", "special").judge(results("location", {("special", None): {1: -1, 2: 3}})).verdict
        == UNDECIDED
    )


def test_a_judgement_has_the_published_value_and_ours(results) -> None:
    judgement = Best("acc").judge(results("main", all_rows(70, 60)))
    assert judgement.published == "62.12 ± 0.18; best other SR-FDIL 61.63 ± 1.47"
    assert judgement.ours.startswith("70.55 ± 0.78; best other ")
