"""Server optimizers: their steps by hand, and what stays true of a method and of its certificate under each of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedspecial.config import Config, merge_settings, resolve
from fedspecial.core.events import RoundFinished, of_kind, read_events
from fedspecial.core.messages import ServerState
from fedspecial.engine.aggregation.server_optimizer import replace_deltas
from fedspecial.engine.checkpoint import load as load_checkpoint
from fedspecial.errors import InputError
from fedspecial.runs.api import resume
from toy_problems import begin, growing, images, learn, play, rotated_blobs

OTHERS = ("momentum", "adam", "yogi", "adagrad")
every_optimizer = pytest.mark.parametrize("optimizer", OTHERS)
DELTAS = (0.5, -0.25)
TAU = 0.1


def directions(**settings: Any) -> list[float]:
    """What becomes of the two deltas, one after another."""
    config, server = Config(server_tau=TAU, **settings), ServerState(torch.zeros(1))
    found = []
    for delta in DELTAS:
        mean = {"theta": torch.tensor([delta])}
        replace_deltas(config, server, mean, 1)
        found.append(float(mean["theta"]))
    return found


def test_two_steps_of_momentum_by_hand() -> None:
    assert directions(server_optimizer="momentum", server_momentum=0.5) == [0.5, 0.5 * 0.5 - 0.25]


def test_two_steps_of_adam_by_hand() -> None:
    m1, v1 = 0.2 * 0.5, 0.9 * TAU**2 + 0.1 * 0.25
    m2, v2 = 0.8 * m1 - 0.2 * 0.25, 0.9 * v1 + 0.1 * 0.0625
    expected = [m1 / (math.sqrt(v1) + TAU), m2 / (math.sqrt(v2) + TAU)]
    assert directions(server_optimizer="adam", server_beta1=0.8, server_beta2=0.9) == pytest.approx(expected, rel=1e-5)


def test_two_steps_of_yogi_by_hand() -> None:
    m1, v1 = 0.2 * 0.5, TAU**2 + 0.1 * 0.25  # v < Δ²: v grows by (1−β2)Δ²
    m2, v2 = 0.8 * m1 - 0.2 * 0.25, v1 + 0.1 * 0.0625
    expected = [m1 / (math.sqrt(v1) + TAU), m2 / (math.sqrt(v2) + TAU)]
    assert directions(server_optimizer="yogi", server_beta1=0.8, server_beta2=0.9) == pytest.approx(expected, rel=1e-5)


def test_yogi_shrinks_a_scale_that_is_too_large() -> None:
    config, server = Config(server_optimizer="yogi", server_tau=1.0, server_beta2=0.9), ServerState(torch.zeros(1))
    replace_deltas(config, server, {"theta": torch.tensor([0.5])}, 1)
    assert float(server.optimizer["theta/second"]) == pytest.approx(1 - 0.1 * 0.25)


def test_two_steps_of_adagrad_by_hand_have_no_momentum() -> None:
    v1 = TAU**2 + 0.25
    expected = [0.5 / (math.sqrt(v1) + TAU), -0.25 / (math.sqrt(v1 + 0.0625) + TAU)]
    assert directions(server_optimizer="adagrad") == pytest.approx(expected, rel=1e-5)


def test_momentum_zero_is_sgd_bit_for_bit(tmp_path: Path) -> None:
    sgd = learn(tmp_path / "sgd", "special")
    ours = learn(tmp_path / "momentum", "special", server_optimizer="momentum", server_momentum=0)
    assert ours.model_sha256 == sgd.model_sha256


@every_optimizer
def test_zero_lambda_is_fedavg_with_the_same_optimizer(optimizer: str, tmp_path: Path) -> None:
    special = learn(tmp_path / "special", "special", lam=0, server_optimizer=optimizer)
    fedavg = learn(tmp_path / "fedavg", "fedavg", server_optimizer=optimizer)
    plain = learn(tmp_path / "plain", "fedavg")
    assert special.model_sha256 == fedavg.model_sha256 != plain.model_sha256


@every_optimizer
def test_the_drift_stays_below_the_bound_from_the_norm_of_the_actual_step(optimizer: str, tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", server_optimizer=optimizer, lam=0.2)
    assert result.certificates is not None
    assert [task["status"] for task in result.certificates[1:]] == ["holds", "holds"]
    events = read_events(tmp_path / "run" / "events.jsonl")
    first = next(r for r in of_kind(events, "round") if r["task"] == 2)
    bound = of_kind(events, "certificate")[1]["rounds"][0]["recursion_bound"]
    assert bound == pytest.approx(first["server_lr"] * first["step_norm"] / 1.2)
    assert first["drift"] == pytest.approx(bound, rel=1e-4)  # one step from the anchor: the bound is reached
    assert first["step_norm"] != pytest.approx(first["delta_norm"], rel=1e-3) or optimizer == "momentum"


def test_without_a_server_optimizer_no_norm_is_recorded_twice(tmp_path: Path) -> None:
    learn(tmp_path / "run", "special")
    assert {r["step_norm"] for r in of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")} == {None}


@every_optimizer
def test_a_resumed_run_keeps_the_state(optimizer: str, tmp_path: Path) -> None:
    settings = {"server_optimizer": optimizer, "server_optimizer_reset": False}
    whole = learn(tmp_path / "whole", "special", **settings)

    def stop(event: Any) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "stopped", "special", listeners=[stop], **settings)
    saved = load_checkpoint(tmp_path / "stopped" / "checkpoint")
    assert saved is not None
    assert set(saved.optimizer) == {"theta/first"} | ({"theta/second"} if optimizer != "momentum" else set())
    assert resume(tmp_path / "stopped", benchmark=rotated_blobs()).model_sha256 == whole.model_sha256


def test_a_task_begins_without_the_past_of_the_optimizer_unless_it_is_kept(tmp_path: Path) -> None:
    """With the reset, the first step of a task is that of plain momentum-free SGD."""
    norms = {}
    for reset in (True, False):
        folder = tmp_path / str(reset)
        learn(folder, "fedavg", server_optimizer="momentum", server_optimizer_reset=reset)
        rounds = of_kind(read_events(folder / "events.jsonl"), "round")
        norms[reset] = next((r["step_norm"], r["delta_norm"]) for r in rounds if r["task"] == 2)
    assert norms[True][0] == norms[True][1]
    assert norms[False][0] != norms[False][1]


@every_optimizer
def test_the_state_follows_a_head_that_grows(optimizer: str, tmp_path: Path) -> None:
    run = begin(
        tmp_path / "run", "special", growing(), model="cnn", width=4, server_optimizer=optimizer,
        server_optimizer_reset=False, server_lr=0.01,
    )  # fmt: skip
    play(run)
    assert {len(state) for state in run.server.optimizer.values()} == {run.model.layout.num_weights}
    assert bool(torch.isfinite(run.vector).all())


@pytest.mark.parametrize("policy", ["average", "mean-only"])
def test_batch_norm_statistics_are_averaged_and_not_optimized(policy: str, tmp_path: Path) -> None:
    """After one round, the statistics are the same with and without an optimizer, and the weights are not."""
    vectors = []
    for optimizer in ("sgd", "adam"):
        settings = {"rounds": 1, "batch_norm": policy, "server_optimizer": optimizer, "server_lr": 1.0}
        problem = images(tasks=1)
        run = begin(tmp_path / optimizer, "fedavg", problem, model="cnn", width=4, **settings)
        assert run.model.layout.num_weights < run.model.layout.size
        vectors.append(play(run).vector)
    weights = run.model.layout.num_weights
    assert torch.equal(vectors[0][weights:], vectors[1][weights:])
    assert not torch.equal(vectors[0][:weights], vectors[1][:weights])


@every_optimizer
def test_a_federation_learns_with_every_server_optimizer(optimizer: str, tmp_path: Path) -> None:
    server_lr = 1.0 if optimizer == "momentum" else 0.1
    result = learn(tmp_path / "run", "special", server_optimizer=optimizer, server_lr=server_lr, rounds=8)
    assert result.matrix[0][0] > 0.8
    assert result.matrix[2][2] > 0.6


def test_adaptive_optimizers_have_a_rate_of_their_own() -> None:
    assert merge_settings({"server_optimizer": "adam"})["server_lr"] == 0.01
    assert merge_settings({"server_optimizer": "adam", "server_lr": 0.5})["server_lr"] == 0.5
    assert "server_lr" not in merge_settings({"server_optimizer": "momentum"}) or (
        merge_settings({"server_optimizer": "momentum"})["server_lr"] != 0.01
    )


def test_mu_needs_plain_sgd_at_the_server() -> None:
    with pytest.raises(InputError, match="at clients and server"):
        resolve(merge_settings({"mu": 0.1, "server_optimizer": "adam"}))


@pytest.mark.parametrize("name", ["fedprox", "special-c", "flwf2t", "srfdil", "pfeddil"])
def test_other_methods_step_with_the_optimizer_too(name: str, tmp_path: Path) -> None:
    """In the first task, these methods are not FedAvg's equals, but the optimizer changes each of them."""
    plain = learn(tmp_path / "plain", name, rounds=2)
    ours = learn(tmp_path / "ours", name, rounds=2, server_optimizer="momentum")
    assert plain.model_sha256 != ours.model_sha256


def test_worker_processes_give_the_same_run_with_a_server_optimizer(tmp_path: Path) -> None:
    settings = {"server_optimizer": "yogi", "rounds": 2}
    alone = learn(tmp_path / "alone", "special", **settings)
    assert learn(tmp_path / "workers", "special", workers=2, **settings).model_sha256 == alone.model_sha256
