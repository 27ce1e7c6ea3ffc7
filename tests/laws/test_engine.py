"""Laws of the loop and the in-process engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedspecial
from fedspecial import Benchmark, Domain, InputError, Method
from fedspecial.core.events import EventLog, read_events
from fedspecial.engine import base, checkpoint, inprocess
from fedspecial.engine.checkpoint import Checkpointer, Position
from fedspecial.engine.round import run_round
from fedspecial.methods.base import StepReport
from fedspecial.models import build
from fedspecial.runs import build as build_run
from toy_problems import begin, images, learn, play, rotated_blobs


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / "events.jsonl") if event["event"] == "round"]


def test_full_participation_with_one_full_batch_is_one_central_gradient_step(tmp_path: Path) -> None:
    """N = M, E = 1, γ_G = 1, no BatchNorm: the server moves along the equally weighted mean of the client gradients."""
    run = begin(
        tmp_path / "run", clients_per_round=4, rounds=1, local_epochs=1, batch_size=1000, server_lr=1.0, eval_every=0
    )
    module = build("mlp", input_shape=(6,), num_classes=3, width=8)
    module.load_state_dict(run.model.module.state_dict())
    train, parts = run.federation.domain(1).train, [run.federation.rows(1, client) for client in range(4)]
    losses = [nn.functional.cross_entropy(module(train.x[rows]), train.y[rows]) for rows in parts]
    gradient = torch.autograd.grad(sum(losses) / 4, list(module.parameters()))
    expected = torch.cat([(p - 0.1 * g).flatten() for p, g in zip(module.parameters(), gradient, strict=True)])
    run_round(run, 1, 0)
    run.log.close()
    assert torch.allclose(run.vector, expected, atol=1e-6)


def test_a_server_rate_of_zero_keeps_the_model(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", server_lr=0.0)
    before = run.vector.clone()
    assert torch.equal(play(run).vector, before)


def test_the_model_does_not_depend_on_how_many_streams_are_made_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = []
    for count in (1, 3, 64):
        monkeypatch.setattr(inprocess, "_STREAMS", count)
        models.append(play(begin(tmp_path / str(count), clients_per_round=4, rounds=1)).vector)
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[1], models[2])


def test_an_unusable_update_is_refused_and_the_round_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad_values = {0: float("nan"), 1: float("inf")}

    def with_bad_values(self: inprocess.InProcess, client: int, *rest: Any) -> base.Reply:
        reply = train_client(self, client, *rest)
        assert reply.update is not None
        if client in bad_values:
            reply.update.deltas["theta"][3] = bad_values[client]
        if client == 2:
            reply.update.deltas["theta"] = reply.update.deltas["theta"][:-1]
        return reply

    train_client = inprocess.InProcess._train_client
    monkeypatch.setattr(inprocess.InProcess, "_train_client", with_bad_values)
    run = play(begin(tmp_path / "run", clients_per_round=4, rounds=1))
    refused = [event for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "update_refused"]
    assert [event["client"] for event in refused] == [0, 1, 2] * 3
    assert {event["reason"] for event in refused[:2]} == {"'theta' contains NaN or Inf"}
    assert f"expected {len(run.vector)}" in refused[2]["reason"]
    assert all(event["num_accepted"] == 1 and not event["held"] for event in rounds_of(tmp_path / "run"))
    assert bool(torch.isfinite(run.vector).all())


def test_without_any_usable_update_the_model_stays_and_the_event_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        inprocess.InProcess, "_train_client", lambda self, client, *rest: base.Reply(client, None, "client offline")
    )
    run = begin(tmp_path / "run", "special", rounds=2)
    before = run.vector.clone()
    assert torch.equal(play(run).vector, before)
    assert all(event["held"] and event["loss"] is None for event in rounds_of(tmp_path / "run"))


def test_no_nan_reaches_the_model_when_clients_diverge(tmp_path: Path) -> None:
    """A rate that is far too large gives NaN on the clients, whose updates are refused."""
    result = learn(tmp_path / "run", client_lr=1e30)
    assert result.refused_updates > 0
    assert result.rounds_held == 9


def test_local_training_can_be_given_in_steps_or_in_fractions_of_an_epoch(tmp_path: Path) -> None:
    learn(tmp_path / "steps", local_steps=7, local_epochs=None)
    assert {event["mean_steps"] for event in rounds_of(tmp_path / "steps")} == {7}
    run = begin(tmp_path / "half", local_epochs=0.5, clients=1, clients_per_round=1, eval_every=0)
    play(run)
    assert {event["mean_steps"] for event in rounds_of(tmp_path / "half")} == {96 / 8 / 2}


def test_a_last_batch_of_one_is_left_out_only_where_batch_norm_needs_it(tmp_path: Path) -> None:
    rows = np.arange(9)
    for model, problem, expected in (("mlp", rotated_blobs(), 2), ("cnn", images(), 1)):
        run = begin(tmp_path / model, "fedavg", problem, model=model, local_epochs=1, eval_every=0)
        run.federation.rows = lambda task, client: rows  # type: ignore[method-assign]
        play(run)
        assert {event["mean_steps"] for event in rounds_of(tmp_path / model)} == {expected}


def test_integer_counters_are_not_aggregated(tmp_path: Path) -> None:
    run = play(begin(tmp_path / "run", "fedavg", images(), model="cnn", width=4))
    assert not any("num_batches_tracked" in slot.name for slot in run.model.layout.slots)
    run.model.load(run.vector)
    counters = [b for n, b in run.model.module.named_buffers() if n.endswith("num_batches_tracked")]
    assert counters
    assert all(int(counter) == 0 for counter in counters)


def test_neither_the_server_rate_nor_the_anchor_applies_to_mean_only_statistics(tmp_path: Path) -> None:
    """With γ_G = 0 the weights stay; statistics under `mean-only` still move, under `average` they do not."""
    for policy, moves in (("average", False), ("mean-only", True), ("local", False)):
        run = begin(tmp_path / policy, "special", images(), model="cnn", width=4, server_lr=0.0, batch_norm=policy)
        before = run.vector.clone()
        play(run)
        weights = run.model.layout.num_weights
        assert torch.equal(run.vector[:weights], before[:weights])
        assert torch.equal(run.vector[weights:], before[weights:]) != moves


def test_local_statistics_are_not_sent(tmp_path: Path) -> None:
    local = learn(tmp_path / "local", "fedavg", images(), model="cnn", width=4, batch_norm="local")
    average = learn(tmp_path / "average", "fedavg", images(), model="cnn", width=4)
    assert local.bytes_up < average.bytes_up
    assert local.bytes_down < average.bytes_down


def test_the_curve_may_be_sparse_and_capped_but_the_matrix_never_is(tmp_path: Path) -> None:
    dense, sparse = learn(tmp_path / "a"), learn(tmp_path / "b", eval_every=2, eval_cap=10)
    assert dense.matrix == sparse.matrix
    assert [sorted(event["accuracy"]) for event in rounds_of(tmp_path / "b")][:3] == [[], ["d1"], ["d1"]]
    assert all((10 * event["accuracy"]["d1"]) % 1 == pytest.approx(0) for event in rounds_of(tmp_path / "b")[1:3])
    assert not any(event["accuracy"] for event in rounds_without_evaluation(tmp_path))


def rounds_without_evaluation(folder: Path) -> list[dict[str, Any]]:
    learn(folder / "c", eval_every=0)
    return rounds_of(folder / "c")


def test_a_single_task_has_no_backward_transfer(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", rotated_blobs(tasks=1))
    assert result.bwt is None
    assert result.worst_drop is None
    assert result.drift is None
    assert 0 <= result.acc <= 1


def test_a_run_accepts_any_module_any_dataset_and_a_users_method(tmp_path: Path) -> None:
    class Points(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
        def __init__(self, flip: float) -> None:
            self.x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1)) * flip

        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return self.x[index], int(self.x[index, 0] > 0)

    class Careful(Method):
        """FedAvg with half of every server step."""

        def server_step(self, server: Any, mean: Any, info: Any) -> StepReport:
            server.theta.add_(mean["theta"], alpha=info.server_lr / 2)
            return StepReport(metrics={"care": 0.5})

    result = fedspecial.run(
        [Domain.of("one", Points(1), Points(1)), Domain.of("two", Points(-1), Points(-1))],
        model=nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.2), nn.ReLU(), nn.Linear(5, 2)), method=Careful(),
        out=tmp_path / "run", rounds=2, clients=3, clients_per_round=2, alpha=10, min_per_client=2, client_lr=0.1,
    )  # fmt: skip
    assert result.method == "careful"
    assert [event["metrics"] for event in rounds_of(tmp_path / "run")] == [{"care": 0.5}] * 4


def test_a_method_in_a_file_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from pydantic.dataclasses import dataclass\n"
        "from fedspecial import Method\n"
        "from fedspecial.methods.base import StepReport\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Method):\n"
        "    share: float = 1.0\n"
        "    def server_step(self, server, mean, info):\n"
        "        server.theta.add_(mean['theta'], alpha=self.share * info.server_lr)\n"
        "        return StepReport()\n"
    )
    name = f"{tmp_path / 'mine.py'}:Mine"
    ours, fedavg = learn(tmp_path / "a", name), learn(tmp_path / "b")
    assert ours.method == "mine"
    assert ours.model_sha256 == fedavg.model_sha256
    assert learn(tmp_path / "c", name, share=0.5).model_sha256 != fedavg.model_sha256
    with pytest.raises(InputError, match="shard: unknown setting"):
        learn(tmp_path / "d", name, shard=0.5)


@pytest.mark.parametrize("policy", ["average", "local"])
def test_the_head_grows_by_the_new_classes(policy: str, tmp_path: Path) -> None:
    """Class-incremental: outputs are added at a task's start, old rows kept, the anchor begins at distance zero."""
    problem = images(tasks=1, rows=64)
    x, y = problem.domains[0].train.x, problem.domains[0].train.y
    halves = [(x[y == label], y[y == label]) for label in (0, 1)]
    more = [(255 - x[y == label], y[y == label] + 2) for label in (0, 1)]
    tasks = [tuple(torch.cat(part) for part in zip(*pair, strict=True)) for pair in (halves, more)]
    domains = tuple(Domain.of(f"t{i}", task, task) for i, task in enumerate(tasks, start=1))
    classes = Benchmark("grows", domains, ("a", "b", "c", "d"), incremental="class")
    sizes: list[tuple[int, int]] = []
    settings = {"model": "cnn", "width": 4, "batch_norm": policy, "partition": "iid", "rounds": 5}
    run = begin(tmp_path / "run", "special", classes, lam=0.1, **settings)
    run.listeners = (
        lambda e: (
            sizes.append((run.model.module.fc.out_features, len(run.server.theta)))  # type: ignore[union-attr]
            if e.event == "task_started"
            else None
        ),
    )
    play(run)
    assert [outputs for outputs, _ in sizes] == [2, 4]
    finished = [e for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "task_finished"]
    assert finished[0]["accuracy"][1] == 0, "after the first task the model has no outputs for the new classes"
    assert finished[1]["accuracy_masked"][0] >= finished[1]["accuracy"][0]


@pytest.mark.parametrize(("passed", "due"), [(0.0, False), (9.0, False), (10.0, True), (11.0, True)])
def test_a_checkpoint_is_due_when_its_seconds_have_passed(
    passed: float, due: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 100.0 + passed])
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: next(clock))
    assert Checkpointer(tmp_path, 10.0).due() == due


def test_a_tensor_that_comes_back_to_the_servers_state_is_in_the_checkpoint_again(tmp_path: Path) -> None:
    run, position = begin(tmp_path / "run"), Position()
    tensor = torch.arange(5.0)
    for tensors in ({"mine": tensor}, {}, {"mine": tensor}):
        run.server.tensors = tensors
        run.checkpoint(position)
    run.log.close()
    saved = checkpoint.load(tmp_path / "run" / "checkpoint")
    assert saved is not None
    assert torch.equal(run.checkpointer.tensor(saved.tensors["mine"]), tensor)


def test_a_run_that_is_refused_while_it_is_prepared_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    close_log = EventLog.close

    def refuse(*given: object) -> None:
        raise InputError("refused")

    def close(log: EventLog) -> None:
        closed.append(log)
        close_log(log)

    monkeypatch.setattr(inprocess.InProcess, "close", lambda engine: closed.append(engine))
    monkeypatch.setattr(EventLog, "close", close)
    monkeypatch.setattr(build_run, "private_aggregation", refuse)
    with pytest.raises(InputError, match="refused"):
        begin(tmp_path / "run")
    assert [type(thing).__name__ for thing in closed] == ["EventLog", "InProcess"]
