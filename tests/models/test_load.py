"""A trained model is ready to predict: `result.model` and `fedspecial.load`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedspecial
from fedspecial import InputError
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
    with pytest.raises(InputError, match=r"the run is not finished \(no model\.safetensors\); resume it first"):
        fedspecial.load(tmp_path / "run")


@pytest.mark.parametrize("method", ["local", "pfeddil"])
def test_a_method_without_a_common_model_has_none_to_load(method: str, tmp_path: Path) -> None:
    learn(tmp_path / "run", method, rounds=1)
    with pytest.raises(InputError, match=f"^method={method}: every client predicts in its own way, so there is no"):
        fedspecial.load(tmp_path / "run")
