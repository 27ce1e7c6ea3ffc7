"""Verdicts: significant differences decide; small differences, few seeds and missing runs do not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedspecial.paper.claims.base import FAILS, HOLDS, TOO_FEW, UNDECIDED, BenchmarkResults, Judgement, advantage
from fedspecial.paper.claims.margins import AtLeast, OnAverage
from fedspecial.paper.claims.methods import AtMost, Best, Better, NeverMore, Positive
from fedspecial.paper.claims.sweeps import BetterSomewhere, NearBest, Peaks, Rises
from fedspecial.paper.claims.theory import UnderDriftBound
from fedspecial.paper.grid import SEEDS, GridPoint, StudyRequest, StudyResults
from fedspecial.paper.registry import find


def test_differences_are_taken_seed_by_seed() -> None:
    one, other = {25: 50.0, 225: 90.0}, {225: 89.0, 25: 49.0, 2025: 10.0}
    assert advantage(one, other) == [1.0, 1.0]
    assert advantage(one, other, better=-1) == [-1.0, -1.0]


def seeds(mean: float, step: float = 0.1, count: int = 5) -> dict[int, float]:
    """Values around a mean, one for each of the first `count` seeds."""
    return {seed: mean + step * (number - (count - 1) / 2) for number, seed in enumerate(SEEDS[:count])}


def all_rows(special: float, others: float, count: int = 5) -> dict[tuple[str, float | None], dict[int, float]]:
    rows = [row.key for row in find("main").rows]
    return {(row, None): seeds(others, 0.1, count) for row in rows} | {("special", None): seeds(special, 0.3, count)}


def test_the_best_must_be_significantly_above_every_other_method(results) -> None:
    assert Best("acc").judge(results("main", all_rows(70, 60))).verdict == HOLDS
    assert Best("acc").judge(results("main", all_rows(50, 60))).verdict == FAILS
    assert Best("acc").judge(results("main", all_rows(60, 60))).verdict == UNDECIDED


def test_a_missing_method_leaves_the_claim_undecided_but_a_better_one_refutes_it(results) -> None:
    values = all_rows(70, 60)
    del values["mfcl", None]
    assert Best("acc").judge(results("main", values)).verdict == UNDECIDED
    values["srfdil", None] = seeds(80)
    assert Best("acc").judge(results("main", values)).verdict == FAILS


def test_rows_that_are_not_in_the_paper_do_not_count_for_best(results) -> None:
    values = all_rows(70, 60) | {("fedavg server_lr=1", None): seeds(90)}
    assert Best("acc").judge(results("main", values)).verdict == HOLDS
    assert Better("acc", "special", "fedavg server_lr=1").judge(results("main", values)).verdict == FAILS


def test_three_seeds_decide_nothing_however_large_the_difference(results) -> None:
    for special in (90, 30):
        assert Best("acc").judge(results("main", all_rows(special, 60, count=3))).verdict == TOO_FEW
        values = {("special", None): seeds(special, count=4), ("fedavg", None): seeds(60)}
        assert Better("acc", "special", "fedavg").judge(results("main", values)).verdict == TOO_FEW


def test_confirming_and_refuting_need_the_same_difference(results) -> None:
    """Mirrored differences give mirrored verdicts, on both sides of the threshold t_4(0.975) = 2.776."""
    other = dict.fromkeys(SEEDS, 0.0)
    mirrored = {HOLDS: FAILS, UNDECIDED: UNDECIDED}
    spread = 5**0.5 / 2.5**0.5  # √5 / standard deviation of (-2, -1, 0, 1, 2), so that t = mean · spread
    for t, expected in ((2.7, UNDECIDED), (2.85, HOLDS)):
        one = seeds(t / spread, 1.0)
        rule = Better("acc", "special", "fedavg")
        for values, verdict in ((one, expected), ({s: -v for s, v in one.items()}, mirrored[expected])):
            assert rule.judge(results("main", {("special", None): values, ("fedavg", None): other})).verdict == verdict


def test_one_better_method_must_be_significant_among_all_comparisons(results) -> None:
    """t = 3.5 is significant for one comparison with five seeds, but not for one of eight."""
    values = {(row.key, None): dict.fromkeys(SEEDS, 0.0) for row in find("main").rows}
    values["srfdil", None] = seeds(3.5 / 2**0.5, 1.0)
    assert Better("acc", "special", "srfdil").judge(results("main", values)).verdict == FAILS
    assert Best("acc").judge(results("main", values)).verdict == UNDECIDED


def test_for_costs_lower_is_better(results) -> None:
    values = {("special", None): seeds(10), ("fedavg", None): seeds(20, 0.2)}
    assert Better("rounds_to_best", "special", "fedavg").judge(results("costs", values)).verdict == HOLDS
    assert AtMost("seconds_per_round", "special", "fedavg", 1.1).judge(results("costs", values)).verdict == HOLDS
    assert AtMost("seconds_per_round", "fedavg", "special", 1.5).judge(results("costs", values)).verdict == FAILS
    assert AtMost("seconds_per_round", "fedavg", "special", 2.0).judge(results("costs", values)).verdict == UNDECIDED
    assert AtMost("seconds_per_round", "special", "mfcl", 1.1).judge(results("costs", values)).verdict == UNDECIDED


def test_what_holds_by_construction_is_checked_in_every_run(results) -> None:
    rule = NeverMore("memory", "special", "fedavg")
    equal = {("special", None): {25: 10.0}, ("fedavg", None): {25: 10.0}}
    assert rule.judge(results("costs", equal)).verdict == HOLDS
    one_more = {("special", None): {25: 9.0, 225: 10.1}, ("fedavg", None): {25: 10.0, 225: 10.0}}
    assert rule.judge(results("costs", one_more)).verdict == FAILS
    assert rule.judge(results("costs", {})).verdict == UNDECIDED
    granted = {
        extra: NeverMore("memory", "special", "fedavg", extra).judge(results("costs", one_more)).verdict
        for extra in (0.05, 0.2)
    }
    assert granted == {0.05: FAILS, 0.2: HOLDS}


def test_the_drift_is_checked_in_every_round_and_shown_at_the_ends_of_tasks() -> None:
    def judge(*summaries: dict[str, object]) -> Judgement:
        study = find("theory")
        run = SimpleNamespace(result=SimpleNamespace(certificates=[{"anchored": True, **one} for one in summaries]))
        runs = {GridPoint("digit10", study.rows[0]): {25: run}}
        found = StudyResults(study, StudyRequest("theory", "cpu"), runs, {}, {})  # type: ignore[arg-type]
        return UnderDriftBound().judge(BenchmarkResults(found, "digit10"))

    kept = {"violated": [], "drift": 0.3, "recursion_bound": 0.5, "max_ratio": 1.0}
    assert judge(kept).verdict == HOLDS
    assert judge(kept).ours == "violated in 0 of 1 tasks; drift at most 0.600 of its bound at the end of a task"
    still = {"violated": [], "drift": 0.0, "recursion_bound": 0.0, "max_ratio": None}
    assert judge(still).ours == "violated in 0 of 1 tasks"
    assert judge(kept, {**still, "violated": [{"kind": "bug"}]}).verdict == FAILS


def test_one_value_of_a_sweep_tests_nothing_about_its_course(results) -> None:
    one = results("rounds", along("rounds", 1))
    assert not any(rule.judge(one).tested for rule in (Rises("acc"), Peaks("acc"), NearBest("acc", 0.6)))
    two = results("rounds", along("rounds", 1, 2))
    assert Rises("acc").judge(two).tested


def along(study: str, *means: float, row: str = "special") -> dict[tuple[str, float | None], dict[int, float]]:
    xs = find(study).sweep.values["cpu"]
    return {(row, x): seeds(mean) for x, mean in zip(xs, means, strict=False)}


def test_rises_requires_an_increase_from_end_to_end_and_no_step_back(results) -> None:
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
    flat = Peaks("acc").judge(results("rounds", along("rounds", 5, 5, 5, 4, 5)))
    assert flat.verdict == UNDECIDED, "no inner value is above the ends, and no end is above all inner values"


def test_near_best_requires_both_neighbours_of_the_best_value(results) -> None:
    assert NearBest("acc", 0.6).judge(results("rounds", along("rounds", 1, 8.5, 9, 8.8, 5))).verdict == HOLDS
    assert NearBest("acc", 0.6).judge(results("rounds", along("rounds", 1, 8.5, 9, 2, 5))).verdict == FAILS
    assert NearBest("acc", 0.6).judge(results("rounds", along("rounds", 1, 8.4, 9, 8.4, 5))).verdict == UNDECIDED
    at_the_end = NearBest("acc", 0.6).judge(results("rounds", along("rounds", 9, 8.9, 5, 4, 3)))
    assert at_the_end.verdict == UNDECIDED, "the true best value may be outside the sweep"
    judgement = NearBest("acc", 0.6).judge(results("rounds", along("rounds", 1, 2, 9, 2, 5)))
    assert judgement.verdict == FAILS
    assert judgement.ours == "best at 10; within 0.6 points at 10"
    for means in ((1, 8.5, 9, 8.8), (1, 9, 2, 1)):
        part = NearBest("acc", 0.6).judge(results("rounds", along("rounds", *means)))
        assert (part.verdict, part.tested) == (UNDECIDED, True), "the missing value could be the best or a neighbour"


def test_better_somewhere_holds_with_one_better_value_and_fails_if_all_are_worse(results) -> None:
    ahead, fedavg = BetterSomewhere("acc", "special", "fedavg"), along("rounds", 5, 5, 5, 5, 5, row="fedavg")
    won = ahead.judge(results("rounds", along("rounds", 1, 2, 9, 4, 5) | fedavg))
    assert (won.verdict, won.ours) == (HOLDS, "difference 1: −4.0, 5: −3.0, 10: +4.0, 20: −1.0, 30: +0.0")
    assert ahead.judge(results("rounds", along("rounds", 1, 2, 3, 4, 4) | fedavg)).verdict == FAILS
    assert ahead.judge(results("rounds", along("rounds", 1, 2, 3, 4, 5) | fedavg)).verdict == UNDECIDED
    assert ahead.judge(results("rounds", along("rounds", 1, 2, 3) | fedavg)).verdict == UNDECIDED, "two are missing"


def test_positive_requires_values_significantly_above_zero(results) -> None:
    rule = Positive("first_gain", "special")
    assert rule.judge(results("location", {("special", None): seeds(1, 0.2)})).verdict == HOLDS
    assert rule.judge(results("location", {("special", None): seeds(-1, 0.2)})).verdict == FAILS
    assert rule.judge(results("location", {("special", None): seeds(1, 2.0)})).verdict == UNDECIDED


def test_a_judgement_has_the_published_value_and_ours(results) -> None:
    judgement = Best("acc").judge(results("main", all_rows(70, 60)))
    assert judgement.published == "62.12 ± 0.18; best other SR-FDIL 61.63 ± 1.47"
    assert judgement.ours.startswith("70.00 ± 0.47; best other ")
    # The differences are 9.6, 9.8, 10, 10.2 and 10.4: mean 10, standard deviation √0.1, t_4(0.975) = 2.776.
    assert judgement.ours.endswith("; advantage +10.00 [9.61, 10.39]")


def test_a_margin_is_added_to_the_difference_of_every_seed(results) -> None:
    """0.4 below is within 0.5 points, but is no advantage; 4.5 above is more than 4 points."""
    for gap, margin, verdict in ((-0.4, -0.5, HOLDS), (-0.4, 0.0, FAILS), (4.5, 4.0, HOLDS), (3.5, 4.0, FAILS)):
        values = {("special", None): seeds(60 + gap, 0.01), ("fedavg", None): seeds(60, 0.0)}
        for rule in (
            AtLeast("acc", "special", "fedavg", margin),
            OnAverage("acc", "special", "fedavg", margin, ("digit10",)),
        ):
            assert rule.judge(results("main", values)).verdict == verdict


def test_a_margin_is_shown_with_the_difference_of_every_seed(results) -> None:
    values = {("special", None): {225: 61.0, 25: 62.5}, ("fedavg", None): {25: 63.0, 225: 60.0}}
    mean = OnAverage("acc", "special", "fedavg", 0.0, ("digit10", "pacs"))
    for rule in (AtLeast("acc", "special", "fedavg", 0.0), mean):
        shown = rule.judge(results("main", values)).ours
        assert shown.startswith("61.75 ± 1.06 vs. 61.50 ± 2.12 (FedAvg); advantage +0.25 [")
        assert "]; by seed +1.00, −0.50" in shown


def test_an_average_without_a_common_seed_decides_nothing(results) -> None:
    values = {("special", None): {25: 1.0}, ("fedavg", None): {225: 1.0}}
    judgement = OnAverage("acc", "special", "fedavg", 0.0, ("digit10",)).judge(results("main", values))
    assert judgement.verdict == UNDECIDED
    assert not judgement.tested


def test_an_optional_benchmark_counts_only_if_one_of_the_two_rows_ran_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digit-10: 5 above. On VLCS, 7 above gives 6 on average, a run of one row alone decides nothing."""
    fedavg, special = seeds(60.0, 0.0), seeds(65.0, 0.01)
    runs = {("digit10", "special"): special, ("digit10", "fedavg"): fedavg}
    monkeypatch.setattr(StudyResults, "values", lambda self, name, row, x, key: runs.get((name, row), {}))
    found = BenchmarkResults(StudyResults(find("main"), StudyRequest("main", "cpu"), {}, {}, {}), "digit10")
    rule = OnAverage("acc", "special", "fedavg", 4.0, ("digit10",), ("vlcs",))
    without = rule.judge(found)
    assert without.verdict == HOLDS
    assert "advantage +5.00" in without.ours
    assert without.ours.endswith("; mean over Digit-10")
    runs["vlcs", "special"] = seeds(67.0, 0.01)
    assert not rule.judge(found).tested
    runs["vlcs", "fedavg"] = fedavg
    assert "advantage +6.00" in rule.judge(found).ours
    assert rule.judge(found).ours.endswith("; mean over Digit-10, VLCS")
