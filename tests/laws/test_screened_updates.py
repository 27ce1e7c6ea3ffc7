"""`norm_limit`: an update that is far larger than others is refused; an honest one never is."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from fedspecial import methods, resume
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.messages import Update
from fedspecial.engine import held_updates
from fedspecial.engine.base import Reply
from fedspecial.engine.checkpoint import load
from fedspecial.engine.held_updates import HeldUpdates
from fedspecial.engine.screening import NormHistory, remember, too_large
from toy_problems import images, learn, rotated_blobs

UNLIMITED = 1e30


def refused(norms: list[float], history: NormHistory | None = None, task: int = 1, limit: float = 10) -> set[int]:
    found = too_large(
        {client: {"theta": norm} for client, norm in enumerate(norms)},
        {client: {"theta": UNLIMITED} for client in range(len(norms))},
        history or {},
        task,
        limit,
    )
    return set(found)


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
    history: NormHistory = {}
    for norm in (100.0, 100.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        remember(history, 1, 0, {"theta": norm})
    assert history == {"1/0/theta": [1.0, 2.0, 3.0, 4.0, 5.0]}
    assert refused([30.0], history) == set()
    assert refused([30.01], history) == {0}
    assert refused([30.01], history, task=2) == set()
    remember(history, 2, 0, {"theta": 7.0})
    assert history == {"2/0/theta": [7.0]}


def test_two_earlier_updates_are_too_few_to_compare_with() -> None:
    assert refused([1e3], {"1/0/theta": [1.0, 1.0]}) == set()
    assert refused([1e3], {"1/0/theta": [1.0, 1.0, 1.0]}) == {0}


def test_a_change_of_more_than_a_million_times_the_model_is_refused_without_any_comparison(tmp_path: Path) -> None:
    sent = {"theta": torch.tensor([3.0, 4.0])}
    held = HeldUpdates(tmp_path)
    for client, size in enumerate((4.9e6, 5.1e6)):
        update = Update(client, {"theta": torch.tensor([size, 0.0])}, 1, 1, 0.0)
        held.add(Reply(client, update, sent=sent), update)
    assert set(too_large(held.norms, held.largest, {}, 1, 10)) == {1}


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
    small = {"generator_width": 4, "latent": 8, "synthetic": 8, "iterations": 3, "server_iterations": 2, "gan_size": 8}
    own = {key: value for key, value in small.items() if hasattr(methods.find(method), key)}
    image = "image" in methods.find(method).kinds and "table" not in methods.find(method).kinds
    # One batch per epoch: BatchNorm over a last batch of two images makes single updates 50 times as large as others.
    problem = (images(tasks=3), {"model": "cnn", "width": 4, "batch_size": 64}) if image else (rotated_blobs(), {})
    for seed in (25, 26, 27):
        settings = {**problem[1], **own, "alpha": alpha, "seed": seed, "clients_per_round": 4, "norm_limit": 10}
        learn(tmp_path / str(seed), method, problem[0], rounds=6, **settings)
        refusals = of_kind(read_events(tmp_path / str(seed) / "events.jsonl"), "update_refused")
        assert not [event for event in refusals if "norm" in event["reason"]]


def test_the_last_norms_are_in_the_checkpoint_and_survive_a_resume(tmp_path: Path) -> None:
    whole = learn(tmp_path / "whole", "special", norm_limit=10, rounds=4)
    run = tmp_path / "whole"
    saved = load(run / "checkpoint")
    assert saved is not None
    assert {key.split("/")[0] for key in saved.update_norms} == {"3"}
    (run / "result.json").unlink()
    assert resume(run, benchmark=rotated_blobs()).model_sha256 == whole.model_sha256


def test_updates_beyond_the_memory_limit_are_in_files_that_leave_nothing_behind(tmp_path: Path) -> None:
    with patch.object(held_updates, "IN_MEMORY", 0):
        filed = learn(tmp_path / "files", "special", norm_limit=10)
    assert filed.model_sha256 == learn(tmp_path / "memory", "special").model_sha256
    assert not list((tmp_path / "files" / "checkpoint").glob("*.part"))
