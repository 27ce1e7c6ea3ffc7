"""Laws of FLwF-2T: which teachers a client has, what they cost, and that they reduce forgetting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedspecial
from fedspecial import InputError, resume
from fedspecial.core.events import RoundFinished, of_kind, read_events
from fedspecial.core.messages import ServerState, Update
from fedspecial.core.streams import stream
from fedspecial.engine import inprocess
from fedspecial.methods import flwf2t
from fedspecial.methods.flwf2t import FLwF2T, distillation
from toy_problems import QUICK, begin, growing, images, learn, play, rotated_blobs, texts

MIB = 2**20
ONE_STEP: dict[str, Any] = {"local_steps": 1, "local_epochs": None}


@pytest.fixture
def local_rounds(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The teachers and the model of every client, before and after its local training."""
    seen: list[dict[str, Any]] = []
    begin_round, end_round = FLwF2T.begin_round, FLwF2T.end_round

    def digests(context: Any) -> dict[str, float]:
        frozen = {"server": context.broadcast.theta, **context.broadcast.payloads}
        frozen |= {name: tensor for name, tensor in context.state.models.items() if name == "past"}
        return {name: float(tensor.double().square().sum()) for name, tensor in frozen.items()}

    def recorded_start(self: FLwF2T, context: Any) -> None:
        begin_round(self, context)
        entry = {"client": context.client, "task": context.broadcast.task, "round": context.broadcast.round}
        entry |= {"samples": len(context.data), "payload": context.broadcast.payloads.get("past")}
        entry |= {"past": context.state.models.get("past"), "before": digests(context), "evaluated": {}}
        seen.append(entry)

    def recorded_end(self: FLwF2T, context: Any) -> None:
        end_round(self, context)
        seen[-1] |= {"model": context.model.vector.clone(), "after": digests(context)}

    logits = flwf2t._logits

    def counted(module: Any, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        teacher = next(iter(tensors.values())).data_ptr()
        seen[-1]["evaluated"][teacher] = seen[-1]["evaluated"].get(teacher, 0) + len(x)
        return logits(module, tensors, x)

    monkeypatch.setattr(FLwF2T, "begin_round", recorded_start)
    monkeypatch.setattr(FLwF2T, "end_round", recorded_end)
    monkeypatch.setattr(flwf2t, "_logits", counted)
    return seen


def test_distillation_is_the_cross_entropy_of_softened_scores() -> None:
    student, teacher = (torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    by_hand = 0.0
    for f, g in zip(student.tolist(), teacher.tolist(), strict=True):
        weights = torch.tensor(g).div(2).exp()
        scores = torch.tensor(f).div(2).exp()
        by_hand -= float((weights / weights.sum() * (scores / scores.sum()).log()).sum()) / 5
    assert float(distillation(student, teacher, 2.0)) == pytest.approx(by_hand, rel=1e-6)


def test_the_loss_is_the_weighted_sum_of_its_three_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, compared = FLwF2T.loss, []

    @torch.no_grad()
    def by_hand(context: Any, x: Tensor, y: Tensor) -> float:
        """The perceptron has the same outputs in training and evaluation mode, so models are evaluated one by one."""
        past = context.broadcast.payloads.get("past", context.state.models.get("past"))
        scores = []
        for vector in (past, context.broadcast.theta, context.model.vector.clone()):
            context.model.load(vector)
            scores.append(context.model.module(x))
        past, server, student = scores
        kept, shared = (distillation(student, teacher, 1.5) for teacher in (past, server))
        return float(0.5 * torch.nn.functional.cross_entropy(student, y) + 0.3 * kept + 0.2 * shared)

    def watched(self: FLwF2T, context: Any, x: Tensor, y: Tensor) -> Tensor:
        expected = by_hand(context, x, y) if context.broadcast.task > 1 else None
        total = loss(self, context, x, y)
        if expected is not None:
            compared.append((total.item(), expected))
        return total

    monkeypatch.setattr(FLwF2T, "loss", watched)
    learn(tmp_path / "run", "flwf2t", alpha_ce=0.5, beta_past=0.3, temperature=1.5)
    assert len(compared) > 50
    ours, expected = zip(*compared, strict=True)
    assert ours == pytest.approx(expected, rel=1e-5)


def test_the_first_task_is_fedavg_and_evaluates_no_teacher(tmp_path: Path, local_rounds: list[dict[str, Any]]) -> None:
    problem = rotated_blobs(tasks=1)
    ours, fedavg = learn(tmp_path / "ours", "flwf2t", problem), learn(tmp_path / "fedavg", "fedavg", problem)
    assert ours.model_sha256 == fedavg.model_sha256
    assert len(local_rounds) == 9
    assert not any(entry["evaluated"] for entry in local_rounds)


def test_training_on_labels_only_is_fedavg_and_evaluates_no_teacher(
    tmp_path: Path, local_rounds: list[dict[str, Any]]
) -> None:
    run = play(begin(tmp_path / "ours", "flwf2t", images(), model="cnn", width=4, alpha_ce=1.0, beta_past=0.0))
    fedavg = play(begin(tmp_path / "fedavg", "fedavg", images(), model="cnn", width=4))
    assert torch.equal(run.vector, fedavg.vector)
    assert not any(entry["evaluated"] for entry in local_rounds)
    assert run.engine.states.index == {}  # type: ignore[attr-defined]
    assert run.server.tensors == {}


def test_distilling_from_the_server_does_not_change_a_model_equal_to_the_servers(tmp_path: Path) -> None:
    """α = β = 0: the student starts equal to its teacher, where the gradient is zero."""
    moved: list[float] = []
    run = begin(tmp_path / "run", "flwf2t", alpha_ce=0.0, beta_past=0.0)
    run.listeners = (lambda e: moved.append(e.delta_norm) if isinstance(e, RoundFinished) and e.task > 1 else None,)
    play(run)
    assert len(moved) == 6
    assert max(moved) < 1e-6


def test_training_does_not_change_the_teachers(tmp_path: Path, local_rounds: list[dict[str, Any]]) -> None:
    learn(tmp_path / "run", "flwf2t", images(), model="cnn", width=4)
    second_task = [entry for entry in local_rounds if entry["task"] == 2]
    assert second_task
    assert all(entry["before"] == entry["after"] and len(entry["before"]) == 2 for entry in second_task)


def test_each_teacher_is_evaluated_once_per_sample(tmp_path: Path, local_rounds: list[dict[str, Any]]) -> None:
    """The server's model once per round, the past model once per task, for any number of epochs."""
    learn(tmp_path / "run", "flwf2t", local_epochs=3)
    seen: set[tuple[int, int]] = set()
    for entry in local_rounds:
        if entry["task"] > 1:
            new = (entry["client"], entry["task"]) not in seen
            seen.add((entry["client"], entry["task"]))
            assert sorted(entry["evaluated"].values()) == [entry["samples"]] * (1 + new)


def test_teachers_are_not_evaluated_on_samples_that_are_not_trained_on(
    tmp_path: Path, local_rounds: list[dict[str, Any]]
) -> None:
    learn(tmp_path / "run", "flwf2t", rotated_blobs(tasks=2), rounds=1, batch_size=4, **ONE_STEP)
    assert [sorted(entry["evaluated"].values()) for entry in local_rounds if entry["task"] == 2] == [[4, 4]] * 3


def test_the_past_model_is_the_clients_own_or_else_the_servers(
    tmp_path: Path, local_rounds: list[dict[str, Any]]
) -> None:
    run = begin(tmp_path / "run", "flwf2t", rotated_blobs(tasks=4), clients=6, clients_per_round=2, rounds=2)
    ends: dict[int, Tensor] = {}
    run.listeners = (lambda e: ends.setdefault(e.task, run.vector.clone()) if e.event == "task_finished" else None,)
    play(run)
    last: dict[tuple[int, int], Tensor] = {}
    own = received = 0
    for entry in local_rounds:
        client, task = entry["client"], entry["task"]
        if task > 1 and (client, task - 1) in last:
            own += 1
            assert entry["payload"] is None
            assert torch.equal(entry["past"], last[client, task - 1])
        elif task > 1:
            received += 1
            assert entry["past"] is None
            assert torch.equal(entry["payload"], ends[task - 1])
        last[client, task] = entry["model"]
    assert own > 2
    assert received > 2


def test_identical_clients_that_all_take_part_equal_one_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their past models are equal too. (A client that was not sampled in the last rounds has an older one.)"""
    monkeypatch.setattr(
        inprocess, "batch_order", lambda seed, task, round, client: stream(seed, "batches", task, round)
    )
    ends = []
    for count in (4, 1):
        run = begin(tmp_path / str(count), "flwf2t", clients=count, clients_per_round=count)
        run.federation.rows = lambda task, client: np.arange(20)  # type: ignore[method-assign]
        ends.append(play(run).vector)
    assert torch.equal(*ends)


def test_all_clients_get_the_global_teacher_and_store_no_model(
    tmp_path: Path, local_rounds: list[dict[str, Any]]
) -> None:
    run = play(begin(tmp_path / "run", "flwf2t", teacher="global"))
    assert all((entry["payload"] is None) == (entry["task"] == 1) for entry in local_rounds)
    kept = [run.engine.states.load(client).tensors for client in range(4)]  # type: ignore[attr-defined]
    assert all(set(tensors) <= {"past_logits"} for tensors in kept)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha_ce": 0.8, "beta_past": 0.4}, "alpha_ce=0.8 and beta_past=0.4 sum to more than 1"),
        ({"alpha_ce": -0.1}, "alpha_ce=-0.1: "),
        ({"beta_past": 1.5}, "beta_past=1.5: "),
        ({"temperature": 0}, "temperature=0: "),
        ({"teacher": "mine"}, "teacher=mine: "),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        learn(tmp_path / "run", "flwf2t", **settings)
    assert "\n" not in str(caught.value)


def test_texts_are_learned_with_adamw(tmp_path: Path) -> None:
    settings = {"model": "text", "width": 8, "optimizer": "adamw", "client_lr": 0.02, "server_lr": 1.0}
    result = learn(tmp_path / "run", "flwf2t", texts(), rounds=6, **settings)
    assert result.matrix[0][0] > 0.8
    assert result.matrix[1][1] > 0.8


@pytest.mark.parametrize("policy", ["average", "mean-only", "local"])
def test_with_growing_heads_teachers_give_scores_for_old_classes_only(policy: str, tmp_path: Path) -> None:
    settings = {"model": "cnn", "width": 4, "partition": "iid", "batch_norm": policy, "clients_per_round": 2}
    run = play(begin(tmp_path / "run", "flwf2t", growing(), rounds=4, **settings))
    kept = [run.engine.states.load(client).tensors for client in range(4)]  # type: ignore[attr-defined]
    logits = [tensors["past_logits"] for tensors in kept if "past_logits" in tensors]
    assert {tuple(part.shape) for part in logits} == {(16, 2)}
    assert not of_kind(read_events(tmp_path / "run" / "events.jsonl"), "update_refused")
    assert bool(torch.isfinite(run.vector).all())


def test_a_stopped_run_with_both_kinds_of_teacher_resumes_to_the_same_result(tmp_path: Path) -> None:
    settings = {"clients": 4, "clients_per_round": 1, "rounds": 3}
    uninterrupted = learn(tmp_path / "uninterrupted", "flwf2t", **settings)

    def stop(event: Any) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "stopped", "flwf2t", listeners=[stop], **settings)
    assert resume(tmp_path / "stopped", benchmark=rotated_blobs()).model_sha256 == uninterrupted.model_sha256


@pytest.mark.parametrize("teacher", ["own", "global"])
def test_a_clients_memory_is_two_models_as_in_the_paper(teacher: str, tmp_path: Path) -> None:
    problem = replace(images(rows=8, size=32), classes=tuple("0123456789"))
    settings = {"model": "resnet18", "width": 64, "clients": 1, "clients_per_round": 1, "rounds": 1, **ONE_STEP}
    result = learn(tmp_path / "run", "flwf2t", problem, teacher=teacher, **settings)
    assert result.client_memory_paper_bytes == pytest.approx(85.38 * MIB, rel=0.01)
    assert result.client_memory_bytes > result.client_memory_paper_bytes


def test_a_round_costs_fedavgs_bytes_and_a_teacher_from_the_server_one_model_more(tmp_path: Path) -> None:
    ours, fedavg = learn(tmp_path / "ours", "flwf2t", clients_per_round=4), learn(tmp_path / "f", clients_per_round=4)
    assert (ours.bytes_up, ours.bytes_down) == (fedavg.bytes_up, fedavg.bytes_down)
    received = learn(tmp_path / "received", "flwf2t", clients_per_round=4, teacher="global")
    assert received.bytes_up == fedavg.bytes_up
    rounds = of_kind(read_events(tmp_path / "received" / "events.jsonl"), "round")
    model = fedavg.bytes_down
    once = [entry["bytes_once"] / 4 for entry in rounds]
    assert once == pytest.approx([0, 0, 0] + 2 * [model, 0, 0], rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [25, 225, 2025])
def test_two_teachers_forget_less_than_none(seed: int, tmp_path: Path) -> None:
    """At least five points of BWT on three domains of digits-shift."""
    settings = {"seed": seed, "domains": "paper,neon,photo", "rounds": 5, "local_epochs": 3, "eval_every": 0}
    ours, fedavg = (
        fedspecial.run("digits-shift", method=name, out=tmp_path / name, **settings) for name in ("flwf2t", "fedavg")
    )
    assert ours.bwt >= fedavg.bwt + 0.05


@pytest.mark.parametrize(
    ("settings", "recorded"),
    [({}, True), ({"teacher": "global"}, False), ({"alpha_ce": 1.0, "beta_past": 0.0}, False)],
)
def test_the_server_records_who_trained_only_if_clients_keep_their_own_teachers(
    settings: dict[str, Any], recorded: bool
) -> None:
    """Clients recorded here are not sent a past model in the next task."""
    server = ServerState(torch.zeros(2))
    for client in (3, 1, 3):
        FLwF2T(**settings).receive(server, Update(client, {"theta": torch.zeros(2)}, 1, 1, 0.0))
    assert {name: tensor.tolist() for name, tensor in server.tensors.items()} == (
        {"trained": [1, 3]} if recorded else {}
    )


class Named(torch.nn.Module):
    """A layer whose argument is named, as dict inputs need it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(6, 3)

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.fc(features)
        return scores


def test_dict_and_tuple_inputs_have_the_model_of_the_same_tensors(tmp_path: Path) -> None:
    plain = rotated_blobs(tasks=2)

    def wrapped(wrap: Any) -> Any:
        def part(samples: Any) -> Any:
            return wrap(samples.x), samples.y

        return [fedspecial.Domain.of(d.name, part(d.train), part(d.test)) for d in plain.domains]

    settings: dict[str, Any] = {**QUICK, "method": "flwf2t", "model": Named}
    expected = fedspecial.run(plain, out=tmp_path / "tensor", **settings).model_sha256
    for kind, wrap in (("dict", lambda x: {"features": x}), ("tuple", lambda x: (x,))):
        assert fedspecial.run(wrapped(wrap), out=tmp_path / kind, **settings).model_sha256 == expected
