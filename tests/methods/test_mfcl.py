"""Laws of MFCL: how the generator is trained, which weights each loss changes, what replay costs, and that it reduces
forgetting."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy

import fedspecial
from fedspecial import Benchmark, Domain, InputError, models
from fedspecial.config import preset_settings
from fedspecial.core.events import EventLog, of_kind, read_events
from fedspecial.core.messages import ClientState
from fedspecial.core.vector import FlatModel
from fedspecial.data.benchmarks import digits_shift
from fedspecial.engine import loop
from fedspecial.engine.round import run_round
from fedspecial.engine.run import Run
from fedspecial.methods import mfcl
from fedspecial.methods.base import ClientContext
from fedspecial.methods.mfcl import Mfcl, imbalance, roughness, statistics_gap
from toy_problems import begin, growing, images, learn, play, rotated_blobs

MIB = 2**20
SMALL: dict[str, Any] = {"generator_width": 4, "latent": 8, "synthetic": 8, "iterations": 4}
CNN: dict[str, Any] = {"model": "cnn", "width": 4}


@pytest.fixture(autouse=True)
def logs_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the event logs of runs that these tests do not finish."""
    with contextlib.ExitStack() as stack:
        open_log = EventLog.__init__

        def opened(self: EventLog, *args: Any, **settings: Any) -> None:
            open_log(self, *args, **settings)
            stack.callback(self.close)

        monkeypatch.setattr(EventLog, "__init__", opened)
        yield


def learn_first_task(run: Run) -> Run:
    loop._begin_task(run, 1)
    for round in range(run.config.rounds):
        run_round(run, 1, round)
    return run


@dataclass
class SecondTask:
    """A client in the first round of the second task, with one batch."""

    run: Run
    context: ClientContext
    x: Tensor
    y: Tensor

    def loss(self, **settings: float) -> Tensor:
        """The loss with these settings; the model, batch and synthetic images are always the same."""
        self.context.__dict__.pop("generator", None)  # so that its random stream starts again
        method = Mfcl(**{**SMALL, **settings})
        method.begin_round(self.context)
        return method.loss(self.context, self.x, self.y)

    def gradients(self, **settings: float) -> tuple[list[Tensor], list[Tensor]]:
        """The gradients of the feature extractor and of the head."""
        parts: tuple[list[Tensor], list[Tensor]] = ([], [])
        module = self.context.model.module
        module.train()
        self.context.model.load(self.run.server.theta)
        self.loss(**settings).backward()
        for name, weight in module.named_parameters():
            assert weight.grad is not None
            parts[name.startswith("fc.")].append(weight.grad)
            weight.grad = None
        return parts


def second_task(folder: Path, benchmark: Benchmark | None = None, **settings: Any) -> SecondTask:
    run = learn_first_task(begin(folder, "mfcl", benchmark or images(), **{**CNN, **SMALL, **settings}))
    loop._end_task(run, 1)
    loop._begin_task(run, 2)
    message, own = run.method.broadcast(run.server, 0, 2, 0), run.federation.client_samples(2, 0)
    rows = own.rows[:6]
    context = run.engine.runner._context(0, message, ClientState(), replace(own, rows=rows), 0.1)  # type: ignore[attr-defined]
    context.positions = torch.arange(6)
    return SecondTask(run, context, *context.data.batch(torch.from_numpy(rows)))


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# --- where it equals FedAvg --------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [images, growing])
def test_fedavg_settings_give_fedavg_bit_for_bit(problem: Any, tmp_path: Path) -> None:
    ours = play(begin(tmp_path / "ours", "mfcl", problem(), **CNN, **{**SMALL, **Mfcl.fedavg_when}))
    fedavg = play(begin(tmp_path / "fedavg", "fedavg", problem(), **CNN))
    assert torch.equal(ours.vector, fedavg.vector)
    rounds = [of_kind(read_events(tmp_path / name / "events.jsonl"), "round") for name in ("ours", "fedavg")]
    for key in ("bytes_up", "bytes_down"):
        assert [event[key] for event in rounds[0]] == [event[key] for event in rounds[1]]


def test_with_fedavg_settings_no_generator_is_trained(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "mfcl", images(), **CNN, **{**SMALL, **Mfcl.fedavg_when})
    before = run.server.tensors["generator"].clone()
    assert torch.equal(play(run).server.tensors["generator"], before)


def test_the_first_task_is_fedavgs_and_the_second_is_not(tmp_path: Path) -> None:
    ours, fedavg = (begin(tmp_path / name, name, images(), **CNN, **settings) for name, settings in METHODS.items())
    assert torch.equal(learn_first_task(ours).vector, learn_first_task(fedavg).vector)
    for run in (ours, fedavg):
        loop._end_task(run, 1)
        loop._begin_task(run, 2)
        run_round(run, 2, 0)
    assert not torch.equal(ours.vector, fedavg.vector)


METHODS: dict[str, dict[str, Any]] = {"mfcl": SMALL, "fedavg": {}}


# --- the server's generator --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["average", "mean-only"])
def test_distillation_changes_the_generator_and_nothing_else(policy: str, tmp_path: Path) -> None:
    run = learn_first_task(begin(tmp_path / "run", "mfcl", images(), batch_norm=policy, **CNN, **SMALL))
    model, generator = run.vector.clone(), run.server.tensors["generator"].clone()
    loop._call_hook(run, 1, "end_task")
    assert not torch.equal(run.server.tensors["generator"], generator)
    assert torch.equal(run.vector, model)
    assert torch.equal(run.model.vector, model)  # BatchNorm statistics are part of it
    assert all(weight.requires_grad and weight.grad is None for weight in run.model.module.parameters())
    assert not any(part._forward_pre_hooks for part in run.model.module.modules())


def test_each_task_continues_training_the_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    distil = Mfcl._distil

    def watched(self: Mfcl, classifier: nn.Module, generator: Any, classes: int) -> None:
        before = generator.vector.clone()
        distil(self, classifier, generator, classes)
        seen.append((before, generator.vector.clone()))

    monkeypatch.setattr(Mfcl, "_distil", watched)
    run = play(begin(tmp_path / "run", "mfcl", images(tasks=3), rounds=1, **CNN, **SMALL))
    (_, first), (second_start, second), (third_start, third) = seen
    assert torch.equal(first, second_start)
    assert torch.equal(second, third_start)
    assert torch.equal(run.server.tensors["generator"], third)


def test_the_generator_is_the_same_throughout_a_task(tmp_path: Path) -> None:
    client = second_task(tmp_path / "run")
    before = client.run.server.tensors["generator"].clone()
    for round in range(3):
        run_round(client.run, 2, round)
    assert torch.equal(client.run.server.tensors["generator"], before)
    assert torch.equal(
        client.run.networks["generator"].vector, before
    )  # generating images did not change its statistics


def test_imbalance_is_0_for_equally_frequent_classes_and_1_for_a_single_class() -> None:
    assert imbalance(torch.zeros(5, 7)).item() == pytest.approx(0, abs=1e-6)
    assert imbalance(1000 * torch.eye(7)).item() == pytest.approx(0, abs=1e-6)
    assert imbalance(torch.tensor([[1000.0, 0, 0]] * 4)).item() == pytest.approx(1)
    half = torch.tensor([[1000.0, 0, 0, 0], [0, 1000.0, 0, 0]])  # ln 2 of ln 4
    assert imbalance(half).item() == pytest.approx(0.5)
    generator = torch.Generator().manual_seed(25)
    for scale in (0.1, 1, 10, 1000):
        logits = (scale * torch.randn(16, 10, generator=generator)).requires_grad_()
        value = imbalance(logits)
        assert 0 < value.item() < 1
        value.backward()
        assert bool(torch.isfinite(logits.grad).all())
    assert imbalance(torch.zeros(3, 1)).item() == 1


def test_the_statistics_gap_is_the_divergence_of_two_normals() -> None:
    generator = torch.Generator().manual_seed(25)
    layer, batch = nn.BatchNorm2d(3), 2 * torch.randn(8, 3, 4, 4, generator=generator) + 1
    variance, mean = torch.var_mean(batch, (0, 2, 3), correction=0)
    running = [
        Normal(m, (v + layer.eps).sqrt()) for m, v in ((layer.running_mean, layer.running_var), (mean, variance))
    ]
    assert statistics_gap(layer, batch).item() == pytest.approx(kl_divergence(*running).mean().item(), rel=1e-5)
    assert statistics_gap(layer, batch).item() > 0


def test_the_statistics_gap_is_0_when_the_batch_has_the_running_statistics() -> None:
    generator = torch.Generator().manual_seed(25)
    layer, batch = nn.BatchNorm1d(3), torch.randn(64, 3, generator=generator)
    for scale in (0.1, 1.0, 1e3):
        batch = scale * batch
        layer.running_var, layer.running_mean = torch.var_mean(batch, 0, correction=0)
        assert statistics_gap(layer, batch).item() == pytest.approx(0, abs=1e-6)
        assert statistics_gap(layer, 1.5 * batch).item() > 0.01


def test_a_channel_that_does_not_vary_has_a_finite_statistics_gap() -> None:
    assert bool(torch.isfinite(statistics_gap(nn.BatchNorm1d(3), torch.zeros(4, 3))))


def test_roughness_is_0_for_flat_images_and_larger_the_faster_they_change() -> None:
    places = torch.arange(16)
    checkers = ((places[:, None] + places) % 2).float().expand(2, 3, 16, 16)
    ramp = (places / 16).expand(2, 3, 16, 16)
    assert roughness(torch.full((2, 3, 16, 16), 0.7)).item() == pytest.approx(0, abs=1e-12)
    assert 0 < roughness(ramp).item() < roughness(checkers).item()


def test_a_model_without_batch_norm_has_no_statistics_to_match(tmp_path: Path) -> None:
    runs = [play(begin(tmp_path / str(w), "mfcl", images(), rounds=1, **{**SMALL, "w_bn": w})) for w in (0.0, 50.0)]
    assert torch.equal(runs[0].vector, runs[1].vector)
    other = play(begin(tmp_path / "div", "mfcl", images(), rounds=1, **{**SMALL, "w_div": 5.0}))
    assert not torch.equal(runs[0].vector, other.vector)


# --- the client's losses -----------------------------------------------------------------------------------------


def test_fine_tuning_changes_the_head_only(tmp_path: Path) -> None:
    client = second_task(tmp_path / "run")
    weak, strong = (client.gradients(w_ft=weight, w_kd=0.0) for weight in (0.1, 10.0))
    assert same(weak[0], strong[0])
    assert not same(weak[1], strong[1])


def test_distillation_changes_the_extractor_only(tmp_path: Path) -> None:
    client = second_task(tmp_path / "run")
    weak, strong = (client.gradients(w_ft=0.0, w_kd=weight) for weight in (0.1, 10.0))
    assert same(weak[1], strong[1])
    assert not same(weak[0], strong[0])


def test_the_distillation_loss_is_zero_before_the_first_step(tmp_path: Path) -> None:
    """In evaluation mode: in training the student normalises by its batch, and the teacher does not."""
    client = second_task(tmp_path / "run")
    client.context.model.module.eval()
    task_loss = cross_entropy(client.context.model.module(client.x), client.y)
    assert client.loss(w_ft=0.0, w_kd=100.0).item() == pytest.approx(task_loss.item(), rel=1e-5)
    client.context.weights.mul_(1.1)
    task_loss = cross_entropy(client.context.model.module(client.x), client.y)
    assert client.loss(w_ft=0.0, w_kd=100.0).item() > 1.01 * task_loss.item()


def test_the_loss_is_the_sum_of_its_three_parts(tmp_path: Path) -> None:
    client = second_task(tmp_path / "run")
    client.context.model.module.eval()
    client.context.weights.mul_(1.1)
    found, model = client.loss(w_ft=0.3, w_kd=0.7), client.context.model.module

    teacher = FlatModel(models.build("cnn", input_shape=(3, 8, 8), num_classes=2, width=4))
    teacher.load(client.run.server.models["previous"])
    previous = teacher.module.eval()
    client.context.__dict__.pop("generator")
    synthetic = client.context.networks["generator"].module(torch.randn(8, 8, generator=client.context.generator))
    both = torch.cat([client.x, synthetic])
    labels = torch.cat([client.y, previous(synthetic).argmax(1)])
    apart = previous.fc(model.features(both)) - previous.fc(previous.features(both))
    expected = cross_entropy(model(client.x), client.y) + 0.3 * cross_entropy(model(both), labels)
    expected = expected + 0.7 * (apart.square().sum(1) / 2).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)


def test_replayed_images_are_fresh_in_every_step_and_differ_between_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    features = models.CNN.features

    def watched(self: Any, x: Tensor) -> Tensor:
        if self.training and len(x) > 8:
            seen.append(x[-8:].numpy().tobytes())
        return features(self, x)

    monkeypatch.setattr(models.CNN, "features", watched)
    play(begin(tmp_path / "run", "mfcl", images(), **CNN, **SMALL))
    steps = sum(
        event["mean_steps"] * event["num_accepted"]
        for event in of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
        if event["task"] == 2
    )
    assert len(seen) == len(set(seen)) == steps


def test_the_previous_model_is_evaluated_once_per_round_and_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[int] = []
    features = models.CNN.features

    def watched(self: Any, x: Tensor) -> Tensor:
        if not self.training and not torch.is_inference_mode_enabled():
            evaluated.append(len(x))
        return features(self, x)

    client = second_task(tmp_path / "run", local_epochs=5)
    monkeypatch.setattr(models.CNN, "features", watched)
    run_round(client.run, 2, 0)
    event = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")[-1]
    steps = event["mean_steps"] * event["num_accepted"]
    assert sum(evaluated) == event["samples"] + 8 * steps


# --- growing label sets ------------------------------------------------------------------------------------------


def test_a_new_class_competes_with_new_classes_only(tmp_path: Path) -> None:
    client = second_task(tmp_path / "run", growing())
    head = client.gradients(w_ft=0.0, w_kd=1.0)[1]
    for gradient in head:
        assert torch.count_nonzero(gradient[:2]) == 0
        assert torch.count_nonzero(gradient[2:]) > 0


def test_replayed_images_have_old_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, labels = second_task(tmp_path / "run", growing()), []
    monkeypatch.setattr(mfcl, "cross_entropy", lambda logits, y: labels.append(y) or cross_entropy(logits, y))
    client.loss(w_ft=1.0)
    assert set(labels[1][:6].tolist()) <= {2, 3}
    assert set(labels[1][6:].tolist()) <= {0, 1}


def test_old_classes_in_new_data_compete_with_all_classes() -> None:
    logits, y = torch.arange(8.0).view(2, 4), torch.tensor([1, 3])
    rivals = mfcl._against_rivals(logits, y, 2)
    assert torch.equal(rivals[0], logits[0])
    assert rivals[1].tolist() == [-torch.inf, -torch.inf, 6, 7]


def test_new_classes_are_learned_and_old_ones_are_not_all_forgotten(tmp_path: Path) -> None:
    """FedAvg, which gets no samples of old classes any more, never predicts one."""
    settings = {**CNN, "rounds": 6, "partition": "iid"}
    ours, fedavg = (learn(tmp_path / n, n, growing(), **settings, **more) for n, more in METHODS.items())
    assert ours.matrix[1][1] > 0.6
    assert ours.matrix[1][0] > fedavg.matrix[1][0]


# --- data and costs ----------------------------------------------------------------------------------------------


def test_clients_without_data_or_with_one_class_do_not_stop_a_run(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "mfcl", images(), clients=4, clients_per_round=3, **CNN, **SMALL)
    labels = run.federation.domain(1).train.y
    rows = [[], torch.nonzero(labels == 0).flatten().tolist(), list(range(10)), [1, 2]]
    run.federation.rows = lambda task, client: torch.tensor(rows[client], dtype=torch.int64).numpy()  # type: ignore[method-assign]
    play(run)
    assert bool(torch.isfinite(run.vector).all())
    assert {round["task"] for round in of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")} == {1, 2}


def test_model_and_generator_are_downloaded_once_per_task_and_uploads_are_fedavgs(tmp_path: Path) -> None:
    settings = {"clients": 2, "clients_per_round": 2, **CNN}
    ours, fedavg = (begin(tmp_path / n, n, images(), **settings, **more) for n, more in METHODS.items())
    rounds = [
        of_kind(read_events(tmp_path / run.method.name / "events.jsonl"), "round") for run in (play(ours), play(fedavg))
    ]
    once = 4 * (len(ours.vector) + len(ours.server.tensors["generator"]))
    for own, plain in zip(*rounds, strict=True):
        assert own["bytes_up"] == plain["bytes_up"]
        more = own["bytes_down"] - plain["bytes_down"]
        if (own["task"], own["round"]) == (2, 0):
            assert 0 < more - 2 * once < 512  # two clients; the rest are the tensors' names and shapes
        else:
            assert more == 0


def test_client_memory_is_that_of_the_papers_table(tmp_path: Path) -> None:
    """117.8 MiB: the working model, the previous one and the generator. 32 pixels, ten classes."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 256, (20, 3, 32, 32), generator=generator).to(torch.uint8), torch.arange(20) % 10
    domains = tuple(Domain.of(f"d{task}", (x, y), (x, y)) for task in (1, 2))
    settings = {"model": "resnet18", "width": 64, "rounds": 1, "local_steps": 1, "local_epochs": None, "clients": 1}
    settings |= {"clients_per_round": 1, "synthetic": 2, "iterations": 1}
    play(begin(tmp_path / "run", "mfcl", Benchmark("ten", domains, tuple("abcdefghij")), **settings))
    first, second = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
    assert first["client_memory_paper_bytes"] / MIB == pytest.approx(42.69, rel=1e-2)
    assert second["client_memory_paper_bytes"] / MIB == pytest.approx(117.8, rel=1e-2)
    assert second["client_memory_bytes"] > second["client_memory_paper_bytes"]


@pytest.mark.parametrize("kind", ["table", "text"])
def test_data_other_than_images_is_refused(kind: str, tmp_path: Path) -> None:
    benchmark = replace(rotated_blobs(), kind=kind)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"method=mfcl: .*{kind}") as refusal:
        learn(tmp_path / "run", "mfcl", benchmark)
    assert "\n" not in str(refusal.value)


def test_a_model_without_features_is_refused(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    with pytest.raises(InputError, match="method=mfcl: needs a model with `features`"):
        learn(tmp_path / "run", "mfcl", images(), model=module, width=None)


@pytest.mark.parametrize(
    "setting", ["w_kd=-1", "w_div=nan", "tau=0", "synthetic=0", "iterations=0", "generator_width=1"]
)
def test_a_setting_out_of_range_is_refused_by_name(setting: str, tmp_path: Path) -> None:
    name, value = setting.split("=")
    with pytest.raises(InputError, match=name):
        learn(tmp_path / "run", "mfcl", images(), **CNN, **{name: float(value) if "nan" in value else int(value)})


# --- learning on digits-shift ------------------------------------------------------------------------------------

SEEDS = pytest.mark.parametrize("seed", [25, 225, 2025])


@pytest.mark.slow
@SEEDS
def test_a_classifier_trained_on_generated_images_only_recognises_real_ones(seed: int, tmp_path: Path) -> None:
    """Ten digits: accuracy must be three times chance, and every class must have a quarter of its equal share.

    The student normalises the real images by their own statistics: those of generated images, whose channels have
    mean 0 and variance 1, are not those of digits on paper.
    """
    preset = preset_settings("digits-shift")
    own = preset.pop("methods")["mfcl"]
    del preset["benchmark"]
    settings, benchmark = {**preset, **own, "rounds": 4, "seed": seed}, digits_shift.load(domains=("paper", "neon"))
    run = learn_first_task(begin(tmp_path / "run", "mfcl", benchmark, **settings))
    loop._call_hook(run, 1, "end_task")
    generator, teacher = run.networks["generator"].module.eval(), run.model.module.eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        x = torch.cat([generator(torch.randn(256, generator.latent)) for _ in range(8)])
        y = teacher(x).argmax(1)
    assert torch.bincount(y, minlength=10).min() > len(y) / 40

    student = models.build("cnn", input_shape=(3, 32, 32), num_classes=10, seed=seed)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(300):
        rows = torch.randint(0, len(x), (64,))
        optimizer.zero_grad()
        cross_entropy(student(x[rows]), y[rows]).backward()
        optimizer.step()
    real = run.federation.domain(1).test
    with torch.no_grad():
        found = student.train()(run.federation.benchmark.inputs(real.x)).argmax(1)
    assert (found == real.y).float().mean() > 0.3


@pytest.mark.slow
@SEEDS
def test_replay_forgets_less_than_fedavg(seed: int, tmp_path: Path) -> None:
    """At least ten points of BWT, and at least five points of final mean accuracy."""
    settings = {"domains": ["paper", "neon", "photo"], "rounds": 5, "eval_every": 0, "seed": seed}
    ours, fedavg = (
        fedspecial.run("digits-shift", method=method, out=tmp_path / method, **settings)
        for method in ("mfcl", "fedavg")
    )
    assert ours.bwt > fedavg.bwt + 0.10
    assert ours.acc > fedavg.acc + 0.05
