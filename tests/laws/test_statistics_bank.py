"""The bank of BatchNorm statistics: those of every task are kept; a sample is predicted with those that fit it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedspecial
from fedspecial import InputError
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.messages import ServerState
from fedspecial.core.statistics_bank import PREFIX, StatisticsBank, fit_weights, sets_in
from fedspecial.core.vector import FlatModel
from fedspecial.engine import bank
from fedspecial.runs import execute
from toy_problems import begin, growing, images, learn, play

CNN: dict[str, Any] = {"model": "cnn", "width": 4, "client_lr": 0.05}


def test_the_weights_of_two_sets_by_hand() -> None:
    """One channel with the values 1 and 3: mean 2, variance 1. Set 1 is N(0, 1), set 2 is N(2, 4).

    d₁ = ½·((2−0)² + 1)/1 + ½·log 1 = 2.5 and d₂ = ½·(0 + 1)/4 + ½·log 4 = 0.125 + log 2.
    """
    x, means, variances = torch.tensor([[[1.0, 3.0]]]), torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [4.0]])
    first, second = 2.5, 0.125 + math.log(2)
    expected = 1 / (1 + math.exp(-(first - second) / 0.5))
    found = fit_weights(x, means, variances, 0.5)
    assert found[0].tolist() == pytest.approx([1 - expected, expected], abs=1e-6)
    assert fit_weights(x, means, variances, 0.0).tolist() == [[0.0, 1.0]]


def test_a_mixture_normalises_with_its_own_mean_and_variance() -> None:
    """Half N(0, 1), half N(4, 3): mean 2, variance (1 + 0 + 3 + 16)/2 − 4 = 6. So 8 becomes (8 − 2)/√6."""
    layer = nn.BatchNorm1d(1, eps=0.0).eval()
    named = {".running_mean": torch.tensor([[0.0], [4.0]]), ".running_var": torch.tensor([[1.0], [3.0]])}
    with StatisticsBank.of_rows(layer, named, temperature=1e9).active():
        assert layer(torch.tensor([[8.0]])).item() == pytest.approx(6 / math.sqrt(6))


def banked(temperature: float = 0.2) -> tuple[FlatModel, StatisticsBank, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
    ).eval()
    model = FlatModel(module)
    sets = [model.buffers.clone() + k * torch.rand(len(model.buffers)) for k in range(3)]
    return model, StatisticsBank.of_vectors(module, model.layout, sets, temperature), torch.randn(6, 3, 8, 8)


def test_a_sample_is_predicted_in_the_same_way_whatever_its_batch() -> None:
    model, sets, x = banked()
    with torch.inference_mode(), sets.active():
        together = model(x)
        alone = torch.cat([model(sample[None]) for sample in x])
    assert torch.allclose(together, alone, atol=1e-5)


def test_equal_sets_predict_like_plain_batch_norm_and_the_layers_are_restored() -> None:
    model, _, x = banked()
    same = [model.buffers.clone()] * 3
    with torch.inference_mode():
        plain = model(x)
        with StatisticsBank.of_vectors(model.module, model.layout, same, 0.2).active():
            assert torch.allclose(model(x), plain, atol=1e-5)
        assert torch.equal(model(x), plain)


def test_the_sample_gets_the_statistics_of_its_own_domain() -> None:
    """Two domains of very different brightness; with temperature 0 each sample is normalised with its own set."""
    layer = nn.BatchNorm2d(2).eval()
    named = {".running_mean": torch.tensor([[0.0, 0.0], [9.0, 9.0]]), ".running_var": torch.ones(2, 2)}
    dark, bright = torch.randn(1, 2, 5, 5), 9 + torch.randn(1, 2, 5, 5)
    with StatisticsBank.of_rows(layer, named, 0.0).active():
        found = layer(torch.cat([dark, bright]))
    assert torch.allclose(found, torch.cat([dark, bright - 9]), atol=1e-4)


def test_the_statistics_of_every_ended_task_are_kept(tmp_path: Path) -> None:
    run = play(begin(tmp_path / "run", "fedavg", images(tasks=3), batch_norm="bank", **CNN))
    assert list(sets_in(run.server.tensors)) == [f"{PREFIX}1", f"{PREFIX}2"]
    sharp = play(begin(tmp_path / "mean-only", "fedavg", images(tasks=3), batch_norm="mean-only", **CNN))
    assert torch.equal(run.vector, sharp.vector), "the bank must not change what is learned"
    rows = [[event["accuracy"] for event in of_kind(read_events(r.log.path), "task_finished")] for r in (run, sharp)]
    assert rows[0][0] == rows[1][0], "in the first task there is nothing to choose from"


def test_a_full_bank_merges_the_two_sets_that_are_most_alike() -> None:
    """Means 0, 10 and 1 with variance 1: the first and the third are merged, to mean 0.5 and variance 1.25."""
    model = FlatModel(nn.Sequential(nn.BatchNorm1d(1)))
    server = ServerState(model.weights)
    for mean in (0.0, 10.0, 1.0):
        bank.store(server, torch.tensor([mean, 1.0]), model.layout, size=2)
    assert {name: values.tolist() for name, values in sets_in(server.tensors).items()} == {
        f"{PREFIX}1": [0.5, 1.25],
        f"{PREFIX}2": [10.0, 1.0],
    }
    bank.store(server, torch.tensor([0.5, 1.25]), model.layout, size=2)
    assert server.numbers[f"{bank.TASKS}1"] == 3


def test_clients_download_a_set_once(tmp_path: Path) -> None:
    result = learn(tmp_path / "bank", "fedavg", images(tasks=2), batch_norm="bank", clients_per_round=4, **CNN)
    rounds = of_kind(read_events(tmp_path / "bank" / "events.jsonl"), "round")
    assert [event["bytes_once"] > 0 for event in rounds] == [False] * 3 + [True, False, False]
    plain = learn(tmp_path / "plain", "fedavg", images(tasks=2), batch_norm="mean-only", clients_per_round=4, **CNN)
    assert result.bytes_up == plain.bytes_up


class StopError(Exception):
    """Ends a run in the middle of its second task."""


def stop_in_task_two(event: Any) -> None:
    if event.event == "round" and (event.task, event.round) == (2, 1):
        raise StopError


def test_a_resumed_run_has_the_same_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"batch_norm": "bank", **CNN}
    whole = learn(tmp_path / "whole", "fedavg", images(), **settings)
    with pytest.raises(StopError):
        learn(tmp_path / "stopped", "fedavg", images(), **settings, listeners=[stop_in_task_two])
    for name in ("draw_matrix", "draw_curves", "draw_drift"):
        monkeypatch.setattr(execute, name, lambda *_: None)
    resumed = fedspecial.resume(tmp_path / "stopped", benchmark=images(), progress=False)
    assert (resumed.model_sha256, resumed.matrix) == (whole.model_sha256, whole.matrix)


def test_evaluate_load_and_workers_use_the_bank(tmp_path: Path) -> None:
    data = images(tasks=2)
    settings = {"batch_norm": "bank", **CNN}
    result = learn(tmp_path / "one", "special", data, **settings)
    accuracy = fedspecial.evaluate(tmp_path / "one", data)
    assert list(accuracy.values()) == pytest.approx(result.matrix[-1])
    trained = fedspecial.load(tmp_path / "one")
    for domain, expected in zip(data.domains, result.matrix[-1], strict=True):
        found = trained.predict(domain.test.x).argmax(1) == domain.test.y
        assert found.float().mean().item() == pytest.approx(expected)
    two = learn(tmp_path / "two", "special", data, workers=2, **settings)
    assert (two.model_sha256, two.matrix) == (result.model_sha256, result.matrix)


def test_told_the_task_each_column_is_the_plain_model_with_exactly_that_tasks_statistics(tmp_path: Path) -> None:
    run = play(begin(tmp_path / "run", "fedavg", images(tasks=3), batch_norm="bank", bank_choice="task", **CNN))
    found = [event["accuracy"] for event in of_kind(read_events(run.log.path), "task_finished")][-1]
    for task, statistics in enumerate([*sets_in(run.server.tensors).values(), run.statistics], start=1):
        run.model.load(run.server.theta)
        run.model.load_buffers(statistics)
        run.model.module.eval()
        test = run.federation.domain(task).test
        with torch.inference_mode():
            right = run.model(run.federation.benchmark.inputs(test.x)).argmax(1) == test.y
        assert found[task - 1] == pytest.approx(right.float().mean().item())


def test_told_the_task_the_first_task_is_predicted_by_the_plain_model(tmp_path: Path) -> None:
    told, plain = (
        learn(tmp_path / name, "fedavg", images(tasks=1), **settings, **CNN).matrix
        for name, settings in (
            ("told", {"batch_norm": "bank", "bank_choice": "task"}),
            ("plain", {"batch_norm": "mean-only"}),
        )
    )
    assert told == plain


@pytest.mark.slow
def test_told_the_task_workers_find_the_same(tmp_path: Path) -> None:
    settings = {"batch_norm": "bank", "bank_choice": "task", **CNN}
    one, two = (learn(tmp_path / str(n), "fedavg", images(tasks=2), workers=n, **settings).matrix for n in (1, 2))
    assert one == two


def test_no_prediction_can_be_told_the_task(tmp_path: Path) -> None:
    data = images(tasks=2)
    learn(tmp_path / "one", "fedavg", data, batch_norm="bank", bank_choice="task", rounds=1, **CNN)
    with pytest.raises(InputError, match=r"^bank_choice=task: it needs the task of every sample, which a prediction"):
        fedspecial.load(tmp_path / "one")
    with pytest.raises(InputError, match=r"^bank_choice=task: it needs the task of every sample"):
        fedspecial.evaluate(tmp_path / "one", data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_norm": "mean-only"}, "it needs batch_norm=bank"),
        ({"batch_norm": "bank", "stream": "recurring"}, "stream=recurring"),
        ({"batch_norm": "bank", "detect": "loss"}, "detect=loss"),
    ],
)
def test_the_task_of_samples_needs_a_bank_with_one_set_for_each_task(
    settings: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"^bank_choice=task: .*{message}"):
        learn(tmp_path / "run", "fedavg", images(), bank_choice="task", **settings, **CNN)


def test_a_bank_that_merges_sets_cannot_be_told_the_task(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^bank_size=1: with bank_choice=task"):
        learn(tmp_path / "run", "fedavg", images(tasks=3), batch_norm="bank", bank_choice="task", bank_size=1, **CNN)


def test_domains_that_come_back_do_not_grow_a_full_bank(tmp_path: Path) -> None:
    settings = {"stream": "recurring", "repeats": 3, "batch_norm": "bank", "bank_size": 2, "rounds": 1}
    run = play(begin(tmp_path / "run", "fedavg", images(tasks=2), **settings, **CNN))
    assert run.federation.num_tasks == 6
    assert list(sets_in(run.server.tensors)) == [f"{PREFIX}1", f"{PREFIX}2"]


def test_the_hash_of_a_model_covers_the_bank(tmp_path: Path) -> None:
    run = play(begin(tmp_path / "run", "fedavg", images(), batch_norm="bank", **CNN))
    before = run.model_sha256()
    run.server.tensors[f"{PREFIX}1"][0] += 1
    assert run.model_sha256() != before


def test_a_growing_head_keeps_the_bank(tmp_path: Path) -> None:
    assert learn(tmp_path / "run", "special", growing(), batch_norm="bank", **CNN).acc is not None


def test_a_method_without_a_common_model_refuses_the_bank(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="batch_norm=bank: it needs a common model, but with method=local"):
        learn(tmp_path / "run", "local", images(), batch_norm="bank", **CNN)
