"""The reference methods: `joint`, the upper bound, and `local`, what clients reach without a federation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedspecial
from fedspecial import InputError
from fedspecial.core.events import of_kind, read_events
from fedspecial.engine.clients.client import LocalResult
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.objectives.classification import CLASSIFICATION
from toy_problems import begin, growing, learn, play, rotated_blobs


def one_domain() -> fedspecial.Benchmark:
    problem = rotated_blobs()
    return replace(problem, domains=problem.domains[:1])


def test_joint_training_on_one_domain_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    joint = learn(tmp_path / "joint", "joint", one_domain())
    assert joint.model_sha256 == learn(tmp_path / "fedavg", "fedavg", one_domain()).model_sha256


def test_in_joint_training_a_client_has_its_rows_of_every_domain(tmp_path: Path) -> None:
    runs = [begin(tmp_path / name, name) for name in ("fedavg", "joint")]
    for run in runs:
        run.log.close()
    alone, joint = (run.federation for run in runs)
    for task in (1, 2, 3):
        for client in range(4):
            rows = [96 * (other - 1) + alone.rows(other, client) for other in (1, 2, 3)]
            assert np.array_equal(joint.rows(task, client), np.concatenate(rows))
        own = joint.domain(task)
        assert torch.equal(own.test.x, alone.domain(task).test.x)
        assert torch.equal(own.train.x[96:192], alone.domain(2).train.x)


def test_joint_training_learns_all_domains_and_has_no_backward_transfer(tmp_path: Path) -> None:
    settings = {"rounds": 12, "server_lr": 1.0, "width": 32, "partition": "iid"}
    joint = learn(tmp_path / "joint", "joint", **settings)
    fedavg = learn(tmp_path / "fedavg", "fedavg", **settings)
    assert (joint.bwt, joint.worst_drop, joint.forgetting) == (None, None, None)
    assert fedavg.bwt is not None
    assert joint.acc > fedavg.acc


def test_joint_training_has_all_classes_from_the_first_task_on(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "joint", growing(), model="cnn", width=4)
    run.log.close()
    assert run.model.module.fc.out_features == 4
    result = learn(tmp_path / "whole", "joint", growing(), model="cnn", width=4, rounds=1)
    assert result.bwt_masked is None


def test_local_training_of_one_client_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    settings = {"clients": 1, "clients_per_round": 1, "server_lr": 1.0, "min_per_client": 1}
    local = learn(tmp_path / "local", "local", **settings)
    fedavg = learn(tmp_path / "fedavg", "fedavg", **settings)
    assert np.allclose(local.matrix, fedavg.matrix, atol=1e-9)
    run = play(begin(tmp_path / "again", "local", **settings))
    own = run.engine.states.load(0).models["own"]  # type: ignore[attr-defined]
    theta = play(begin(tmp_path / "theirs", "fedavg", **settings)).vector
    # θ + (θ_m − θ) differs from θ_m in the last bits.
    assert torch.allclose(own, theta, atol=1e-5)


def test_local_training_sends_the_initial_model_once_and_no_update(tmp_path: Path) -> None:
    learn(tmp_path / "run", "local", clients_per_round=4)
    first, *later = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
    assert first["bytes_once"] > 0
    assert {r["bytes_once"] for r in later} == {0}
    assert {r["delta_norm"] for r in (first, *later)} == {0.0}
    assert all(r["bytes_up"] < 1000 * 4 for r in later)  # numbers only: loss, steps, samples


def test_a_client_alone_is_not_influenced_by_the_others(tmp_path: Path) -> None:
    """The model of client 0 is the same whether the others train or not."""
    models = []
    for others in (True, False):
        run = begin(tmp_path / str(others), "local", clients_per_round=4)
        if not others:
            train = run.engine.runner.train  # type: ignore[attr-defined]

            def only_first(client: int, *args: object, train: object = train) -> object:
                return train(client, *args) if client == 0 else LocalResult(None, "left out")  # type: ignore[operator]

            run.engine.runner.train = only_first  # type: ignore[attr-defined, method-assign]
        play(run)
        models.append(run.engine.states.load(0).models["own"])  # type: ignore[attr-defined]
    assert torch.equal(*models)


def test_local_training_reports_the_mean_over_the_clients(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "local")
    play(run)
    runner, states = run.engine.runner, run.engine.states  # type: ignore[attr-defined]
    message, test = run.method.eval_broadcast(run.server, 0, 3), run.federation.domain(1).test
    scoring = CLASSIFICATION.scoring(complete=False)
    found = [runner.scores(client, message, states.load(client), test, scoring) for client in range(4)]
    accuracies = [scores["accuracy"] for scores in found]
    last = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "task_finished")[-1]
    assert last["accuracy"][0] == pytest.approx(sum(accuracies) / 4)
    assert len(set(accuracies)) > 1


def test_local_training_works_while_the_head_grows(tmp_path: Path) -> None:
    alone = learn(tmp_path / "alone", "local", growing(), model="cnn", width=4)
    workers = learn(tmp_path / "workers", "local", growing(), model="cnn", width=4, workers=2)
    assert alone.matrix == workers.matrix


@pytest.mark.parametrize("name", ["joint", "local"])
def test_a_real_federation_refuses_reference_methods(name: str) -> None:
    plan = FederationPlan(("north", "south"), {"method": name})
    with pytest.raises(InputError, match=f"method={name}: a reference method"):
        plan.resolved()
