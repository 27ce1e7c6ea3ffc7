"""Laws of FedCIL: what is generated and from which labels, what the server does with it, what it costs."""

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
from fedspecial.core.messages import Update
from fedspecial.core.vector import raw_bytes
from fedspecial.data.benchmarks import digits_shift
from fedspecial.engine import loop
from fedspecial.engine.loop import Run
from fedspecial.methods.base import ProblemSpec
from fedspecial.methods.fedcil import FedCil
from fedspecial.methods.fedcil_gan import Gan, Pictures, Scale
from toy_problems import begin, growing, images, learn, play, rotated_blobs

MIB = 2**20
# The smallest GAN, and few iterations on it.
SMALL: dict[str, Any] = {"model": "cnn", "width": 4, "generator_width": 2, "server_iterations": 2, "server_batch": 4}


def begun(folder: Path, benchmark: Benchmark | None = None, **settings: Any) -> Run:
    return begin(folder, "fedcil", benchmark or images(), **{**SMALL, **settings})


def fedavg(folder: Path, benchmark: Benchmark | None = None, **settings: Any) -> str:
    return learn(folder, "fedavg", benchmark or images(), model="cnn", width=4, **settings).model_sha256


def digest(run: Run) -> str:
    return run.model.layout.digest(run.vector)


def sha(tensor: Tensor) -> str:
    return hashlib.sha256(raw_bytes(tensor)).hexdigest()


def hand_out(run: Run, hands: dict[tuple[int, int], int | None]) -> None:
    """(task, client) → the one label it holds; the others hold everything; None holds nothing."""

    def rows(task: int, client: int) -> np.ndarray:
        labels = run.federation.domain(task).train.y
        label = hands.get((task, client), -1)
        chosen = labels < 0 if label is None else (labels == label) | (label == -1)
        return chosen.nonzero().flatten().numpy()

    run.federation.rows = rows  # type: ignore[method-assign]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every batch that a client replayed, with what it had held and what the generator knew."""
    seen: list[dict[str, Any]] = []
    replayed = FedCil._replayed

    def watched(self: FedCil, context: Any, count: int) -> Pictures | None:
        result = replayed(self, context, count)
        first = context.broadcast.payloads["first_task"].clone()
        about = {"client": context.client, "task": context.broadcast.task, "count": count, "first_task": first}
        seen.append({**about, "held": context.state.tensors["labels"].clone(), "pictures": result})
        return result

    monkeypatch.setattr(FedCil, "_replayed", watched)
    return seen


# --- FedAvg inside ---------------------------------------------------------------------------------------------


def test_its_zero_is_fedavg_while_the_gan_goes_on_learning(tmp_path: Path) -> None:
    run = begun(tmp_path / "zero", **FedCil.fedavg_when)
    before = {name: run.server.tensors[name].clone() for name in ("generator", "critic")}
    play(run)
    assert digest(run) == fedavg(tmp_path / "fedavg")
    assert all(not torch.equal(run.server.tensors[name], start) for name, start in before.items())


@pytest.mark.parametrize("importance", [0.0, 0.2])
def test_the_first_task_is_fedavg_for_any_importance(importance: float, tmp_path: Path) -> None:
    problem = images(tasks=1)
    assert digest(play(begun(tmp_path / "ours", problem, importance=importance))) == fedavg(
        tmp_path / "fedavg", problem
    )


def test_the_second_task_is_not(tmp_path: Path) -> None:
    assert digest(play(begun(tmp_path / "ours"))) != fedavg(tmp_path / "fedavg")


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
    play(begun(tmp_path / "run", importance=0.7))
    assert len(compared) > 20
    ours, expected = zip(*compared, strict=True)
    assert ours == pytest.approx(expected, rel=1e-5)


# --- what is generated -------------------------------------------------------------------------------------------


def test_replayed_images_are_in_range_and_of_labels_the_client_has_held(
    tmp_path: Path, replays: list[dict[str, Any]]
) -> None:
    run = begun(tmp_path / "run", clients=3, clients_per_round=3)
    hand_out(run, {(1, 0): 0, (2, 0): 0, (1, 1): None, (2, 1): 1})
    play(run)
    assert all(turn["pictures"] is None for turn in replays if turn["task"] == 1)
    second = [turn for turn in replays if turn["task"] == 2]
    assert {turn["client"] for turn in second} == {0, 1, 2}
    for turn in second:
        made, labels = turn["pictures"]
        assert made.shape == (turn["count"], 3, 8, 8)
        assert made.min() >= -1
        assert made.max() <= 1
        assert not made.requires_grad
        assert bool(turn["held"][labels].all())
    held = {client: {tuple(t["held"].tolist()) for t in second if t["client"] == client} for client in range(3)}
    assert held == {0: {(True, False)}, 1: {(False, True)}, 2: {(True, True)}}


def test_no_generator_is_asked_for_a_class_nobody_trained(
    tmp_path: Path, replays: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that grows: in task 2 the old generator knows the classes 0 and 1 alone."""
    asked: list[set[int]] = []
    frozen = Gan.frozen
    monkeypatch.setattr(
        Gan, "frozen", lambda self, vector, labels: asked.append(set(labels.tolist())) or frozen(self, vector, labels)
    )
    run = begun(tmp_path / "run", growing(), rounds=2)
    hand_out(run, {(1, 3): None})
    loop._begin_task(run, 1)
    for round in range(2):
        loop.run_round(run, 1, round)
    assert set().union(*asked) == {0, 1}
    loop._end_task(run, 1)
    loop._begin_task(run, 2)
    loop.run_round(run, 2, 0)
    run.log.close()
    assert run.server.tensors["first_task"].tolist() == [1, 1, 2, 2]
    second = [turn for turn in replays if turn["task"] == 2]
    for turn in second:
        newcomer = not bool(turn["held"][:2].any())
        assert (turn["pictures"] is None) == newcomer
        assert newcomer or set(turn["pictures"].labels.tolist()) <= {0, 1}
    assert any(turn["pictures"] is not None for turn in second)


def test_a_class_incremental_run_stopped_in_its_second_task_goes_on_to_the_same_end(tmp_path: Path) -> None:
    def stop(event: Any) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 0):
            raise KeyboardInterrupt

    whole = learn(tmp_path / "whole", "fedcil", growing(), **SMALL)
    assert whole.refused_updates == 0
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "cut", "fedcil", growing(), **SMALL, listeners=[stop])
    assert resume(tmp_path / "cut", benchmark=growing()).model_sha256 == whole.model_sha256


def test_the_old_generator_is_that_of_the_last_task_and_keeps_its_hash(
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
    play(begun(tmp_path / "run", images(tasks=3)))
    assert set(sent) == {(1, None), (2, ended[1]), (3, ended[2])}
    assert len(set(ended.values())) == 3


def test_a_batch_of_one_image_can_be_learned_from(tmp_path: Path) -> None:
    run = play(begun(tmp_path / "run", images(rows=8), model="mlp", width=8, batch_size=1, clients=2,
                     clients_per_round=2, local_epochs=1, rounds=2, min_per_client=1))  # fmt: skip
    assert bool(torch.isfinite(run.vector).all())
    assert all(event["num_accepted"] == 2 for event in of_kind(read_events(tmp_path / "run/events.jsonl"), "round"))


# --- the losses --------------------------------------------------------------------------------------------------


def test_there_is_no_consistency_in_the_first_round_of_a_task(tmp_path: Path) -> None:
    def trained(name: str, **settings: Any) -> dict[str, Tensor]:
        return play(begun(tmp_path / name, server_iterations=0, **settings)).server.tensors

    one, none = (trained(f"one-{weight}", consistency=weight, rounds=1) for weight in (1.0, 0.0))
    assert torch.equal(one["critic"], none["critic"])
    assert torch.equal(one["generator"], none["generator"])
    one, none = (trained(f"two-{weight}", consistency=weight, rounds=2) for weight in (1.0, 0.0))
    assert not torch.equal(one["critic"], none["critic"])


def test_a_step_every_so_many_batches_leaves_the_others_to_the_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    step = Gan.step
    monkeypatch.setattr(Gan, "step", lambda self, *args: steps.append(1) or step(self, *args))
    settings = {"server_iterations": 0, "clients": 2, "clients_per_round": 2, "local_steps": 7, "local_epochs": None}
    play(begun(tmp_path / "run", images(tasks=1), rounds=2, gan_every=3, **settings))
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
    run = begun(tmp_path / "run", server_iterations=0, server_lr=0.5)
    loop._begin_task(run, 1)
    for round in range(2):
        before = {name: run.server.tensors[name].clone() for name in ("generator", "critic")}
        updates.clear()
        loop.run_round(run, 1, round)
        assert len(updates) == 3
        for name, start in before.items():
            mean = torch.stack([update[name] for update in updates]).mean(dim=0).float()
            assert torch.equal(run.server.tensors[name], start + mean)
    run.log.close()


def test_consolidation_trains_the_averaged_gan_and_leaves_nothing_behind(tmp_path: Path) -> None:
    vectors = {}
    for iterations in (0, 2):
        run = begun(tmp_path / str(iterations), server_iterations=iterations)
        loop._begin_task(run, 1)
        loop.run_round(run, 1, 0)
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
def test_a_client_that_does_not_properly_say_what_it_holds_teaches_nobody(
    tmp_path: Path, labels: Tensor | None
) -> None:
    run = begun(tmp_path / "run")
    run.log.close()
    run.method.begin_task(run.server, run.context(1))
    deltas = {"generator": torch.zeros_like(run.server.tensors["generator"])}
    run.method.receive(run.server, Update(0, deltas, 1, 1, 0.0, uploads={} if labels is None else {"labels": labels}))
    assert set(run.server.tensors) == {"generator", "critic", "first_task"}


# --- what it takes -----------------------------------------------------------------------------------------------


def test_text_and_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^method=fedcil: it supports image data, not table data$"):
        begin(tmp_path / "table", "fedcil", rotated_blobs())
    with pytest.raises(InputError, match=r"^method=fedcil: it supports image data, not text data$"):
        methods.find("fedcil")().check_problem(ProblemSpec("text", (16,), 2, 2, 4))


def test_memory_and_wire_are_the_published_ones(tmp_path: Path) -> None:
    """ResNet-18, ten classes, 32 pixels: 59.05 MiB held and sent; the old generator comes once a task."""
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
    for played in rounds:
        assert played["client_memory_paper_bytes"] / MIB == pytest.approx(59.05, rel=0.01)
        assert played["bytes_up"] / 2 / MIB == pytest.approx(59.05, rel=0.01)
        assert (played["bytes_down"] - played["bytes_once"]) / 2 / MIB == pytest.approx(59.05, rel=0.01)
    once = [played["bytes_once"] / 2 / MIB for played in rounds]
    assert once == pytest.approx([0, 0, 13.68, 0], abs=0.01)
    held = [played["client_memory_bytes"] for played in rounds]
    assert held[2] - held[0] == pytest.approx(13.68 * MIB, rel=0.01)


# --- learning is real --------------------------------------------------------------------------------------------

SEEDS = (25, 225, 2025)
# After these two worlds FedAvg has forgotten the first, down to guessing.
WORLDS = ("paper", "photo")
FORGOTTEN_LESS = 0.2  # of accuracy on the first world after the second, mean over the seeds
RECOGNISED = 0.3  # of the old generator's images, by a classifier that never saw one; chance is 0.1


def preset_run(folder: Path, name: str, seed: int) -> Run:
    """The preset's federation on two worlds and fewer rounds."""
    settings = preset_settings("digits-shift")
    own = settings.pop("methods").get(name, {})
    settings |= {"rounds": 6, "eval_every": 0, "seed": seed, **own}
    benchmark = digits_shift.load(domains=WORLDS)
    return begin(folder, name, benchmark, **{key: value for key, value in settings.items() if key != "benchmark"})


@torch.no_grad()
def share_recognised(run: Run, classifier: Tensor) -> float:
    """How many of the old generator's images a classifier sees as what they were asked to be."""
    run.model.load(classifier)
    run.model.module.eval()
    generator = run.networks["generator"]
    gan = Gan(generator, run.networks["critic"], torch.Generator().manual_seed(1))
    made, labels = gan.frozen(run.server.tensors["old_generator"], torch.arange(1000) % 10)
    assert isinstance(run.method, FedCil)
    seen = run.model.module(Scale.of(run.problem, run.method.gan_shape(run.problem)).to_classifier(made))
    return float((seen.argmax(dim=1) == labels).float().mean())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_replay_keeps_the_first_world_and_its_images_show_their_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classifier that ended the first task has seen no generated image, so it can judge them."""
    judges: list[Tensor] = []
    begin_task = FedCil.begin_task
    monkeypatch.setattr(
        FedCil,
        "begin_task",
        lambda self, server, context: judges.append(server.theta.clone()) or begin_task(self, server, context),
    )
    kept: dict[str, list[float]] = {"fedavg": [], "fedcil": []}
    recognised = []
    for seed in SEEDS:
        for name, accuracies in kept.items():
            folder = tmp_path / f"{name}-{seed}"
            run = play(preset_run(folder, name, seed))
            accuracies.append(of_kind(read_events(folder / "events.jsonl"), "task_finished")[-1]["accuracy"][0])
        recognised.append(share_recognised(run, judges[-1]))
    assert sum(kept["fedcil"]) / 3 > sum(kept["fedavg"]) / 3 + FORGOTTEN_LESS, kept
    assert sum(recognised) / 3 > RECOGNISED, recognised
