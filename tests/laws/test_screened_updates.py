"""`norm_limit`: an update that is far larger than others is refused; an honest one never is."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn

from fedspecial import methods, resume
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.vector import FlatModel
from fedspecial.engine.aggregation import held_updates
from fedspecial.engine.aggregation.screening import (
    History,
    beyond_all,
    impossible,
    remember,
    sizes,
    statistics_of,
    too_large,
)
from fedspecial.engine.checkpoint import load
from fedspecial.flower.app.plan import MIN_BATCH, NORM_LIMIT
from method_problems import IMAGE_MODEL, problem_for
from toy_problems import images, learn, rotated_blobs


def refused(norms: list[float], history: History | None = None, task: int = 1, limit: float = 10) -> set[int]:
    found = {client: {"theta": norm} for client, norm in enumerate(norms)}
    return set(too_large(found, history or {}, task, limit))


def test_above_ten_times_the_median_of_four_is_refused_and_exactly_ten_times_is_not() -> None:
    assert refused([1.0, 1.0, 1.0, 10.0]) == set()
    assert refused([1.0, 1.0, 1.0, 10.001]) == {3}
    assert refused([1.0, 3.0, 1.0, 20.0]) == set()  # the median is 2
    assert refused([1.0, 3.0, 1.0, 20.01]) == {3}


def test_three_updates_of_a_round_are_not_compared_with_each_other() -> None:
    assert refused([1.0, 1.0, 1e6]) == set()


def test_a_median_of_zero_says_nothing() -> None:
    assert refused([0.0, 0.0, 0.0, 5.0]) == set()


def test_a_client_is_compared_with_its_last_five_updates_of_the_task() -> None:
    history: History = {}
    for norm in (100.0, 100.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        remember(history, 1, {0: {"theta": norm}})
    assert history == {"1/0/theta": [1.0, 2.0, 3.0, 4.0, 5.0]}
    assert refused([30.0], history) == set()
    assert refused([30.01], history) == {0}
    assert refused([30.01], history, task=2) == set()
    remember(history, 2, {0: {"theta": 7.0}})
    assert history == {"2/0/theta": [7.0]}


def test_two_earlier_updates_are_too_few_to_compare_with() -> None:
    assert refused([1e3], {"1/0/theta": [1.0, 1.0]}) == set()
    assert refused([1e3], {"1/0/theta": [1.0, 1.0, 1.0]}) == {0}


def test_an_update_is_not_refused_because_those_of_others_have_become_small() -> None:
    """When a task is learned, one batch that the model gets wrong may honestly be worth a hundred others."""
    history: History = {}
    remember(history, 1, {client: {"theta": norm} for client, norm in enumerate((2.0, 3.0, 4.0))})
    for _ in range(3):
        remember(history, 1, {client: {"theta": 0.01} for client in range(4)})
    assert history["largest/theta"] == [3.0]
    assert refused([0.01, 0.01, 0.01, 30.0], history) == set()
    assert refused([0.01, 0.01, 0.01, 30.01], history) == {3}
    assert refused([30.01], history) == {0}
    assert refused([0.01, 0.01, 0.01, 30.01], history, task=2) == {3}


def test_two_updates_do_not_make_later_ones_pass() -> None:
    history: History = {}
    remember(history, 1, {0: {"theta": 1.0}, 1: {"theta": 1e9}})
    assert "largest/theta" not in history


def test_a_change_of_more_than_a_million_times_the_model_is_refused_without_any_comparison() -> None:
    sent = {"theta": torch.tensor([3.0, 4.0])}
    assert beyond_all({"theta": torch.tensor([4.9e6, 0.0])}, sent) is None
    assert "more than a million times" in str(beyond_all({"theta": torch.tensor([5.1e6, 0.0])}, sent))


NORMED = FlatModel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))  # 15 weights, 3 means, 3 variances
IN_NORMED = statistics_of(NORMED, {})


def changed(**parts: float) -> dict[str, torch.Tensor]:
    """An update of `NORMED` in which every value of a part changes by so much."""
    at = {"weights": slice(0, 15), "means": slice(15, 18), "variances": slice(18, 21)}
    delta = torch.zeros(21)
    for part, value in parts.items():
        delta[at[part]] = value
    return {"theta": delta}


def measured(**parts: float) -> dict[str, float]:
    sent = {"theta": torch.cat([torch.zeros(18), torch.ones(3)])}  # mean 0 and variance 1, as at the start
    return sizes(changed(**parts), sent, IN_NORMED)


def test_weights_and_statistics_are_measured_apart() -> None:
    assert measured(weights=2.0) == {"theta": pytest.approx(2 * 15**0.5), "theta statistics": 0.0}
    found = measured(means=1.0)
    assert found["theta"] == 0.0
    assert found["theta statistics"] > 1
    assert sizes({"theta": torch.ones(15)}, {"theta": torch.zeros(15)}, IN_NORMED) == {"theta": pytest.approx(15**0.5)}
    only = {"buffers": changed(variances=1.0)["theta"][15:]}
    sent = {"buffers": torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])}
    assert sizes(only, sent, IN_NORMED) == {
        "buffers statistics": pytest.approx(measured(variances=1.0)["theta statistics"])
    }


def test_the_size_of_a_variance_is_the_logarithm_of_its_growth() -> None:
    doubled, grown = (measured(variances=factor - 1)["theta statistics"] for factor in (2.0, 2.0**12))
    assert doubled == pytest.approx(3**0.5 * math.log(2) / 2**0.5, rel=1e-3)
    assert grown == pytest.approx(12 * doubled, rel=1e-3)


def test_huge_statistics_alone_are_refused_and_a_variance_that_honestly_grew_a_thousandfold_is_not() -> None:
    ordinary = measured(weights=0.1, means=0.5, variances=1.0)

    def among_others(**parts: float) -> dict[int, str]:
        return too_large({0: ordinary, 1: ordinary, 2: ordinary, 3: measured(**parts)}, {}, 1, NORM_LIMIT)

    assert among_others(weights=0.1, means=0.5, variances=1e3) == {}
    assert among_others(weights=0.1, variances=1e30)[3].startswith("the update of 'theta statistics' has size ")
    assert "theta statistics" in among_others(weights=0.1, means=1e6, variances=1.0)[3]


def test_a_negative_variance_is_refused_whatever_the_others_are() -> None:
    sent = {"theta": torch.cat([torch.zeros(18), torch.ones(3)])}
    assert impossible(changed(variances=-1.0), sent, IN_NORMED) is None
    assert impossible(changed(variances=-1.001), sent, IN_NORMED) == "'theta' has a negative running variance"
    noisy = {"theta": torch.cat([torch.zeros(18), -torch.ones(3)])}  # as noise for privacy may leave it
    assert impossible(changed(variances=-0.1), noisy, IN_NORMED) is None


@pytest.mark.parametrize("alpha", [0.1, 1.0])
@pytest.mark.parametrize("method", ["special", "srfdil"])
def test_no_honest_client_loses_an_update(method: str, alpha: float, tmp_path: Path) -> None:
    settings = {"clients": 8, "clients_per_round": 5, "alpha": alpha}
    plain = learn(tmp_path / "plain", method, **settings)
    screened = learn(tmp_path / "screened", method, norm_limit=10, **settings)
    assert screened.model_sha256 == plain.model_sha256
    assert not of_kind(read_events(tmp_path / "screened" / "events.jsonl"), "update_refused")


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("method", [name for name in methods.names() if not methods.find(name).simulation_only])
def test_no_honest_client_of_the_contract_suite_loses_an_update(method: str, alpha: float, tmp_path: Path) -> None:
    """With the defaults of a federation, on the problem of the method, and on images with BatchNorm."""
    problems = [problem_for(method)]
    if problems[0][0].kind != "image":
        problems.append((images(tasks=3), {**IMAGE_MODEL, **problems[0][1]}))
    for number, (problem, own) in enumerate(problems):
        for seed in (25, 26, 27):
            settings = {**own, "alpha": alpha, "seed": seed, "clients_per_round": 4}
            folder = tmp_path / f"{number}-{seed}"
            learn(folder, method, problem, rounds=6, norm_limit=NORM_LIMIT, min_batch=MIN_BATCH, **settings)
            assert not of_kind(read_events(folder / "events.jsonl"), "update_refused")


def test_the_last_norms_are_in_the_checkpoint_and_survive_a_resume(tmp_path: Path) -> None:
    whole = learn(tmp_path / "whole", "special", norm_limit=10, rounds=4)
    run = tmp_path / "whole"
    saved = load(run / "checkpoint")
    assert saved is not None
    assert {key.split("/")[0] for key in saved.update_norms} == {"3", "largest"}
    (run / "result.json").unlink()
    assert resume(run, benchmark=rotated_blobs()).model_sha256 == whole.model_sha256


def test_updates_beyond_the_memory_limit_are_in_files_that_leave_nothing_behind(tmp_path: Path) -> None:
    with patch.object(held_updates, "IN_MEMORY", 0):
        filed = learn(tmp_path / "files", "special", norm_limit=10)
    assert filed.model_sha256 == learn(tmp_path / "memory", "special").model_sha256
    assert not list((tmp_path / "files" / "checkpoint").glob("*.part"))
