"""A trained model is ready to predict: `result.model` and `fedspecial.load`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedspecial
from fedspecial import Benchmark, Domain, InputError, Samples
from toy_problems import growing, images, learn, rotated_blobs


def accuracy(probabilities: torch.Tensor, y: torch.Tensor) -> float:
    return float((probabilities.argmax(1) == y).float().mean())


def test_the_model_of_a_result_predicts_as_the_run_measured(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", images(), lam=0.1)
    trained = fedspecial.load(tmp_path / "run")
    assert result.folder == tmp_path / "run"
    assert not result.model.training
    assert (trained.classes, trained.input_shape) == (("left", "right"), (3, 8, 8))
    for column, domain in enumerate(images().domains):
        probabilities = trained.predict(domain.test.x.numpy())
        assert torch.allclose(probabilities.sum(1), torch.ones(len(probabilities)))
        assert accuracy(probabilities, domain.test.y) == pytest.approx(result.matrix[-1][column])
        scores = result.model(images().inputs(domain.test.x)).softmax(1)
        assert torch.allclose(scores, probabilities, atol=1e-6)


def test_a_module_from_python_is_passed_again(tmp_path: Path) -> None:
    def make(units: int = 5) -> nn.Module:
        return nn.Sequential(nn.Linear(6, units), nn.BatchNorm1d(units), nn.ReLU(), nn.Linear(units, 3))

    result = learn(tmp_path / "run", model=make)
    test = rotated_blobs().domains[-1].test
    assert accuracy(result.model(test.x), test.y) == pytest.approx(result.matrix[-1][-1])
    again = fedspecial.resume(tmp_path / "run", model=make())
    assert torch.equal(again.model(test.x), result.model(test.x))
    with pytest.raises(InputError, match=r"model=make: .*not saved; .*fedspecial\.load\(.*model=…\)"):
        fedspecial.load(tmp_path / "run")
    with pytest.raises(InputError, match=r"fedspecial\.load\(.*model=…\)"):
        _ = fedspecial.resume(tmp_path / "run").model
    with pytest.raises(InputError, match=r"another one than the given model \('0\.weight': \(5, 6\) in the file"):
        fedspecial.load(
            tmp_path / "run",
            model=lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)),
        )
    with pytest.raises(InputError, match="is not in the model"):
        fedspecial.load(tmp_path / "run", model=nn.Linear(6, 3))


def test_a_head_that_grew_is_loaded_with_all_its_outputs(tmp_path: Path) -> None:
    learn(tmp_path / "run", benchmark=growing(), rounds=1)
    trained = fedspecial.load(tmp_path / "run")
    assert trained.predict(growing().domains[0].test.x).shape == (64, 4)


def test_inputs_of_another_shape_and_unfinished_runs_are_refused_in_one_line(tmp_path: Path) -> None:
    learn(tmp_path / "run", rounds=1)
    trained = fedspecial.load(tmp_path / "run")
    with pytest.raises(InputError, match=r"inputs: shape \(2, 5\); .* takes a batch of \(6,\)"):
        trained.predict(torch.zeros(2, 5))
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors is missing; remove result\.json, and resume the run"):
        fedspecial.load(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(InputError, match=r"the run is not finished \(no model\.safetensors\); resume it first"):
        fedspecial.load(tmp_path / "run")


@pytest.mark.parametrize("method", ["local", "pfeddil"])
def test_a_method_without_a_common_model_has_none_to_load(method: str, tmp_path: Path) -> None:
    learn(tmp_path / "run", method, rounds=1)
    with pytest.raises(InputError, match=f"^method={method}: every client predicts in its own way, so there is no"):
        fedspecial.load(tmp_path / "run")


class OneOfTwo(nn.Module):
    """Reads the first of two inputs; the second is uint8, as a mask may be."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) + mask.float().mean()


@pytest.mark.parametrize("form", ["dict", "tuple", "data set"])
def test_several_inputs_are_predicted_as_the_run_measured(form: str, tmp_path: Path) -> None:
    def part(samples: Samples) -> Any:
        mask = torch.full((len(samples), 1), 200, dtype=torch.uint8)
        if form == "data set":
            return [({"mask": m, "x": x}, int(y)) for m, x, y in zip(mask, samples.x, samples.y, strict=True)]
        return ({"mask": mask, "x": samples.x} if form == "dict" else (mask, samples.x)), samples.y

    domains = [Domain.of(d.name, part(d.train), part(d.test)) for d in rotated_blobs().domains]
    result = learn(tmp_path / "run", "fedavg", Benchmark.of(domains), model=OneOfTwo())
    trained = fedspecial.load(tmp_path / "run", model=OneOfTwo())
    for column, domain in enumerate(domains):
        probabilities = trained.predict(domain.test)
        assert accuracy(probabilities, domain.test.y) == pytest.approx(result.matrix[-1][column])
        given, stored = part(rotated_blobs().domains[column].test), domain.test.x
        assert torch.equal(trained.predict(stored if form == "data set" else given[0]), probabilities)


def test_what_does_not_become_a_tensor_is_refused_in_one_line(tmp_path: Path) -> None:
    learn(tmp_path / "run", rounds=1)
    with pytest.raises(InputError, match=r"^inputs: list does not become a tensor \("):
        fedspecial.load(tmp_path / "run").predict(["a text"])


def test_whole_numbers_are_read_as_in_training(tmp_path: Path) -> None:
    learn(tmp_path / "run", "fedavg")
    trained = fedspecial.load(tmp_path / "run")
    numbers = [[1] * 6, [-2] * 6]
    assert torch.equal(trained.predict(numbers), trained.predict(torch.tensor(numbers, dtype=torch.float32)))


@pytest.mark.parametrize(("value", "what"), [(math.nan, "NaN"), (math.inf, "infinity")])
def test_inputs_that_give_no_probabilities_are_refused(value: float, what: str, tmp_path: Path) -> None:
    learn(tmp_path / "run", "fedavg")
    x = torch.zeros(300, 6)
    x[280, 2] = value
    with pytest.raises(InputError, match=f"^inputs: row 280: the input contains {what}"):
        fedspecial.load(tmp_path / "run").predict(x)


def test_images_of_another_integer_type_are_refused(tmp_path: Path) -> None:
    """They would be read without normalisation, and every prediction would be wrong."""
    learn(tmp_path / "run", "fedavg", images(), model="cnn", width=2)
    x = torch.zeros(2, *images().input_shape, dtype=torch.int64)
    with pytest.raises(InputError, match=r"^inputs: int64; .* takes images of type uint8"):
        fedspecial.load(tmp_path / "run").predict(x)
