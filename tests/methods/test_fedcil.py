"""Laws of FedCIL: which images are generated from which labels, how the server trains on them, what it costs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedspecial import Benchmark, Domain, InputError, methods, resume
from fedspecial.config import preset_settings
from fedspecial.core.events import RoundFinished, of_kind, read_events
from fedspecial.core.messages import Update, raw_bytes
from fedspecial.data.benchmarks import digits_shift
from fedspecial.engine import loop
from fedspecial.engine.round import run_round
from fedspecial.engine.run import Run
from fedspecial.methods.base import ProblemSpec
from fedspecial.methods.fedcil import FedCil
from fedspecial.methods.fedcil_gan import Gan, Pictures, Scale
from toy_problems import begin, growing, images, learn, play, rotated_blobs

MIB = 2**20
# The smallest GAN, trained for few iterations.
SMALL: dict[str, Any] = {"model": "cnn", "width": 4, "generator_width": 2, "server_iterations": 2, "server_batch": 4}


def prepared_run(folder: Path, benchmark: Benchmark | None = None, **settings: Any) -> Run:
    return begin(folder, "fedcil", benchmark or images(), **{**SMALL, **settings})


def fedavg(folder: Path, benchmark: Benchmark | None = None, **settings: Any) -> str:
    return learn(folder, "fedavg", benchmark or images(), model="cnn", width=4, **settings).model_sha256


def digest(run: Run) -> str:
    return run.model.layout.digest(run.vector)


def sha(tensor: Tensor) -> str:
    return hashlib.sha256(raw_bytes(tensor)).hexdigest()


def assign_labels(run: Run, labels_of: dict[tuple[int, int], int | None]) -> None:
    """(task, client) → the only label in the client's data, or None for no data; other clients have all samples."""

    def rows(task: int, client: int) -> np.ndarray:
        labels = run.federation.domain(task).train.y
        label = labels_of.get((task, client), -1)
        chosen = labels < 0 if label is None else (labels == label) | (label == -1)
        return chosen.nonzero().flatten().numpy()

    run.federation.rows = rows  # type: ignore[method-assign]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every batch that a client replayed, with the labels the client has had and the first task of each label."""
    seen: list[dict[str, Any]] = []
    replayed = FedCil._replayed

    def watched(self: FedCil, context: Any, count: int) -> Pictures | None:
        result = replayed(self, context, count)
        first = context.broadcast.payloads["first_task"].clone()
        about = {"client": context.client, "task": context.broadcast.task, "count": count, "first_task": first}
        seen.append({**about, "client_labels": context.state.tensors["labels"].clone(), "pictures": result})
        return result

    monkeypatch.setattr(FedCil, "_replayed", watched)
    return seen


# --- where it equals FedAvg --------------------------------------------------------------------------------------


def test_fedavg_settings_give_fedavg_while_the_gan_is_still_trained(tmp_path: Path) -> None:
    run = prepared_run(tmp_path / "ours", **FedCil.fedavg_when)
    before = {name: run.server.tensors[name].clone() for name in ("generator", "critic")}
    play(run)
    assert digest(run) == fedavg(tmp_path / "fedavg")
    assert all(not torch.equal(run.server.tensors[name], start) for name, start in before.items())


@pytest.mark.parametrize("importance", [0.0, 0.2])
def test_the_first_task_is_fedavg_for_any_importance(importance: float, tmp_path: Path) -> None:
    problem = images(tasks=1)
    assert digest(play(prepared_run(tmp_path / "ours", problem, importance=importance))) == fedavg(
        tmp_path / "fedavg", problem
    )


def test_the_second_task_differs_from_fedavg(tmp_path: Path) -> None:
    assert digest(play(prepared_run(tmp_path / "ours"))) != fedavg(tmp_path / "fedavg")


def test_the_classifier_weighs_new_and_replayed_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """w·CE(f(x), y) + (1 − w)·CE(f(x_r), y_r), by hand, with both in one batch of the classifier's BatchNorm."""
    compared, loss = [], FedCil.loss

    def watched(self: FedCil, context: Any, x: Tensor, y: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        handle = context.model.module.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        total = loss(self, context, x, y)
        handle.remove()
        if context.broadcast.task > 1:
            chances = torch.log_softmax(outputs[0].detach(), dim=1)
            old = last["pictures"].labels
            parts = [-chances[torch.arange(len(y)), y].mean(), -chances[len(y) + torch.arange(len(old)), old].mean()]
            compared.append((total.item(), float(0.7 * parts[0] + 0.3 * parts[1])))
        return total

    last: dict[str, Any] = {}
    replayed = FedCil._replayed
    monkeypatch.setattr(FedCil, "_replayed", lambda *args: last.update(pictures=replayed(*args)) or last["pictures"])
    monkeypatch.setattr(FedCil, "loss", watched)
    play(prepared_run(tmp_path / "run", importance=0.7))
    assert len(compared) > 20
    ours, expected = zip(*compared, strict=True)
    assert ours == pytest.approx(expected, rel=1e-5)


# --- what is generated -------------------------------------------------------------------------------------------


def test_replayed_images_are_in_range_and_have_labels_that_the_client_has_had(
    tmp_path: Path, replays: list[dict[str, Any]]
) -> None:
    run = prepared_run(tmp_path / "run", clients=3, clients_per_round=3)
    assign_labels(run, {(1, 0): 0, (2, 0): 0, (1, 1): None, (2, 1): 1})
    play(run)
    assert all(entry["pictures"] is None for entry in replays if entry["task"] == 1)
    second = [entry for entry in replays if entry["task"] == 2]
    assert {entry["client"] for entry in second} == {0, 1, 2}
    for entry in second:
        made, labels = entry["pictures"]
        assert made.shape == (entry["count"], 3, 8, 8)
        assert made.min() >= -1
        assert made.max() <= 1
        assert not made.requires_grad
        assert bool(entry["client_labels"][labels].all())
    held = {
        client: {tuple(entry["client_labels"].tolist()) for entry in second if entry["client"] == client}
        for client in range(3)
    }
    assert held == {0: {(True, False)}, 1: {(False, True)}, 2: {(True, True)}}


def test_no_images_are_generated_of_a_class_that_was_not_trained(
    tmp_path: Path, replays: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a growing head, the old generator of task 2 was trained on classes 0 and 1 only."""
    generated: list[set[int]] = []
    frozen = Gan.frozen
    monkeypatch.setattr(
        Gan,
        "frozen",
        lambda self, vector, labels: generated.append(set(labels.tolist())) or frozen(self, vector, labels),
    )
    run = prepared_run(tmp_path / "run", growing(), rounds=2)
    assign_labels(run, {(1, 3): None})
    loop._begin_task(run, 1)
    for round in range(2):
        run_round(run, 1, round)
    assert set().union(*generated) == {0, 1}
    loop._end_task(run, 1)
    loop._begin_task(run, 2)
    run_round(run, 2, 0)
    run.log.close()
    assert run.server.tensors["first_task"].tolist() == [1, 1, 2, 2]
    second = [entry for entry in replays if entry["task"] == 2]
    for entry in second:
        no_old_labels = not bool(entry["client_labels"][:2].any())
        assert (entry["pictures"] is None) == no_old_labels
        assert no_old_labels or set(entry["pictures"].labels.tolist()) <= {0, 1}
    assert any(entry["pictures"] is not None for entry in second)


def test_a_class_incremental_run_stopped_in_its_second_task_resumes_to_the_same_result(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 0):
            raise KeyboardInterrupt

    uninterrupted = learn(tmp_path / "uninterrupted", "fedcil", growing(), **SMALL)
    assert uninterrupted.refused_updates == 0
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "stopped", "fedcil", growing(), **SMALL, listeners=[stop])
    assert resume(tmp_path / "stopped", benchmark=growing()).model_sha256 == uninterrupted.model_sha256


def test_the_old_generator_is_that_of_the_previous_task_and_does_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, ended = [], {}
    broadcast, server_step = FedCil.broadcast, FedCil.server_step

    def watched(self: FedCil, server: Any, client: int, task: int, round: int) -> Any:
        message = broadcast(self, server, client, task, round)
        sent.append((task, sha(message.payloads["old_generator"]) if "old_generator" in message.payloads else None))
        return message

    def stepped(self: FedCil, server: Any, mean: Any, info: Any) -> Any:
        report = server_step(self, server, mean, info)
        ended[info.task] = sha(server.tensors["generator"])
        return report

    monkeypatch.setattr(FedCil, "broadcast", watched)
    monkeypatch.setattr(FedCil, "server_step", stepped)
    play(prepared_run(tmp_path / "run", images(tasks=3)))
    assert set(sent) == {(1, None), (2, ended[1]), (3, ended[2])}
    assert len(set(ended.values())) == 3


def test_a_batch_may_have_one_image(tmp_path: Path) -> None:
    run = play(prepared_run(tmp_path / "run", images(rows=8), model="mlp", width=8, batch_size=1, clients=2,
                     clients_per_round=2, local_epochs=1, rounds=2, min_per_client=1))  # fmt: skip
    assert bool(torch.isfinite(run.vector).all())
    assert all(event["num_accepted"] == 2 for event in of_kind(read_events(tmp_path / "run/events.jsonl"), "round"))


# --- the losses --------------------------------------------------------------------------------------------------


def test_the_consistency_loss_is_zero_in_the_first_round_of_a_task(tmp_path: Path) -> None:
    def trained(name: str, **settings: Any) -> dict[str, Tensor]:
        return play(prepared_run(tmp_path / name, server_iterations=0, **settings)).server.tensors

    one, none = (trained(f"one-{weight}", consistency=weight, rounds=1) for weight in (1.0, 0.0))
    assert torch.equal(one["critic"], none["critic"])
    assert torch.equal(one["generator"], none["generator"])
    one, none = (trained(f"two-{weight}", consistency=weight, rounds=2) for weight in (1.0, 0.0))
    assert not torch.equal(one["critic"], none["critic"])


def test_with_gan_every_only_every_nth_batch_trains_the_gan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    step = Gan.step
    monkeypatch.setattr(Gan, "step", lambda self, *args: steps.append(1) or step(self, *args))
    settings = {"server_iterations": 0, "clients": 2, "clients_per_round": 2, "local_steps": 7, "local_epochs": None}
    play(prepared_run(tmp_path / "run", images(tasks=1), rounds=2, gan_every=3, **settings))
    assert len(steps) == 2 * 2 * 3


# --- the server --------------------------------------------------------------------------------------------------


def test_without_consolidation_generator_and_critic_are_plain_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: list[dict[str, Tensor]] = []
    receive = FedCil.receive

    def watched(self: FedCil, server: Any, update: Update) -> None:
        updates.append({name: delta.double() for name, delta in update.deltas.items()})
        receive(self, server, update)

    monkeypatch.setattr(FedCil, "receive", watched)
    run = prepared_run(tmp_path / "run", server_iterations=0, server_lr=0.5)
    loop._begin_task(run, 1)
    for round in range(2):
        before = {name: run.server.tensors[name].clone() for name in ("generator", "critic")}
        updates.clear()
        run_round(run, 1, round)
        assert len(updates) == 3
        for name, start in before.items():
            mean = torch.stack([update[name] for update in updates]).mean(dim=0).float()
            assert torch.equal(run.server.tensors[name], start + mean)
    run.log.close()


def test_consolidation_trains_the_averaged_gan_and_stores_nothing_else(tmp_path: Path) -> None:
    vectors = {}
    for iterations in (0, 2):
        run = prepared_run(tmp_path / str(iterations), server_iterations=iterations)
        loop._begin_task(run, 1)
        run_round(run, 1, 0)
        run.log.close()
        vectors[iterations] = run.server.tensors
        assert set(run.server.tensors) == {"generator", "critic", "first_task"}
        assert of_kind(read_events(tmp_path / str(iterations) / "events.jsonl"), "round")[0]["metrics"] == {
            "teachers": 3
        }
    assert not torch.equal(vectors[0]["generator"], vectors[2]["generator"])
    assert not torch.equal(vectors[0]["critic"], vectors[2]["critic"])


@pytest.mark.parametrize(
    "labels",
    [None, torch.ones(3, dtype=torch.bool), torch.zeros(2, dtype=torch.bool), torch.tensor([1.0, float("nan")])],
)
def test_a_client_that_uploads_invalid_labels_is_not_used_for_consolidation(
    tmp_path: Path, labels: Tensor | None
) -> None:
    run = prepared_run(tmp_path / "run")
    run.log.close()
    run.method.begin_task(run.server, run.context(1))
    deltas = {"generator": torch.zeros_like(run.server.tensors["generator"])}
    run.method.receive(run.server, Update(0, deltas, 1, 1, 0.0, uploads={} if labels is None else {"labels": labels}))
    assert set(run.server.tensors) == {"generator", "critic", "first_task"}


def test_what_was_received_in_a_last_round_without_a_quorum_does_not_count_in_the_next_task(tmp_path: Path) -> None:
    run = prepared_run(tmp_path / "run")
    loop._begin_task(run, 1)
    run.quorum = lambda: 10  # more than there are clients
    run_round(run, 1, 0)
    received = {name for name in run.server.tensors if "/" in name}
    loop._begin_task(run, 2)
    run.log.close()
    assert {name.split("/")[0] for name in received} == {"labels", "generator"}
    assert set(run.server.tensors) == {"generator", "critic", "first_task", "old_generator"}
    assert not run.server.tensors["first_task"].any()


# --- data and costs ----------------------------------------------------------------------------------------------


def test_text_and_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^method=fedcil: it supports image data, not table data$"):
        begin(tmp_path / "table", "fedcil", rotated_blobs())
    with pytest.raises(InputError, match=r"^method=fedcil: it supports image data, not text data$"):
        methods.find("fedcil")().check_problem(ProblemSpec("text", (16,), 2, 4))


def test_client_memory_and_traffic_are_the_published_ones(tmp_path: Path) -> None:
    """ResNet-18, ten classes, 32 pixels: 59.05 MiB in memory and per message; the old generator once per task."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randint(0, 256, (40, 3, 32, 32), generator=generator, dtype=torch.uint8), torch.arange(40) % 10
    problem = Benchmark("pictures", tuple(Domain.of(name, (x, y), (x, y)) for name in "ab"), tuple("0123456789"))
    settings = {
        "rounds": 2,
        "local_steps": 1,
        "local_epochs": None,
        "batch_size": 4,
        "clients": 2,
        "clients_per_round": 2,
    }
    learn(
        tmp_path / "run",
        "fedcil",
        problem,
        model="resnet18",
        width=64,
        server_iterations=0,
        partition="iid",
        **settings,
    )
    rounds = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
    assert len(rounds) == 4
    for entry in rounds:
        assert entry["client_memory_paper_bytes"] / MIB == pytest.approx(59.05, rel=0.01)
        assert entry["bytes_up"] / 2 / MIB == pytest.approx(59.05, rel=0.01)
        assert (entry["bytes_down"] - entry["bytes_once"]) / 2 / MIB == pytest.approx(59.05, rel=0.01)
    once = [entry["bytes_once"] / 2 / MIB for entry in rounds]
    assert once == pytest.approx([0, 0, 13.68, 0], abs=0.01)
    memory = [entry["client_memory_bytes"] for entry in rounds]
    assert memory[2] - memory[0] == pytest.approx(13.68 * MIB, rel=0.01)


# --- learning on digits-shift ------------------------------------------------------------------------------------

SEEDS = (25, 225, 2025)
# After learning these two domains, FedAvg is no better than chance on the first.
DOMAINS = ("paper", "photo")
FORGOTTEN_LESS = 0.2  # difference in accuracy on the first domain after the second, mean over the seeds
RECOGNISED = 0.3  # share of the old generator's images, by a classifier that was not trained on them; chance is 0.1


def preset_run(folder: Path, name: str, seed: int) -> Run:
    """The preset's federation on two domains with fewer rounds."""
    settings = preset_settings("digits-shift")
    own = settings.pop("methods").get(name, {})
    settings |= {"rounds": 6, "eval_every": 0, "seed": seed, **own}
    benchmark = digits_shift.load(domains=DOMAINS)
    return begin(folder, name, benchmark, **{key: value for key, value in settings.items() if key != "benchmark"})


@torch.no_grad()
def share_recognised(run: Run, classifier: Tensor) -> float:
    """The share of the old generator's images that a classifier assigns the label they were generated for."""
    run.model.load(classifier)
    run.model.module.eval()
    generator = run.networks["generator"]
    gan = Gan(generator, run.networks["critic"], torch.Generator().manual_seed(1))
    made, labels = gan.frozen(run.server.tensors["old_generator"], torch.arange(1000) % 10)
    assert isinstance(run.method, FedCil)
    logits = run.model.module(Scale.of(run.problem, run.method.gan_shape(run.problem)).to_classifier(made))
    return float((logits.argmax(dim=1) == labels).float().mean())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_replay_keeps_accuracy_on_the_first_domain_and_generated_images_are_recognisable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classifier after the first task was not trained on generated images, so it can evaluate them."""
    classifiers: list[Tensor] = []
    begin_task = FedCil.begin_task
    monkeypatch.setattr(
        FedCil,
        "begin_task",
        lambda self, server, context: classifiers.append(server.theta.clone()) or begin_task(self, server, context),
    )
    kept: dict[str, list[float]] = {"fedavg": [], "fedcil": []}
    recognised = []
    for seed in SEEDS:
        for name, accuracies in kept.items():
            folder = tmp_path / f"{name}-{seed}"
            run = play(preset_run(folder, name, seed))
            accuracies.append(of_kind(read_events(folder / "events.jsonl"), "task_finished")[-1]["accuracy"][0])
        recognised.append(share_recognised(run, classifiers[-1]))
    assert sum(kept["fedcil"]) / 3 > sum(kept["fedavg"]) / 3 + FORGOTTEN_LESS, kept
    assert sum(recognised) / 3 > RECOGNISED, recognised
