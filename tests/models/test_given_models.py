"""model=MODULE and model=FUNCTION: what a run does with a model that was passed from Python."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedspecial
from fedspecial import InputError
from toy_problems import QUICK, growing, images, learn, rotated_blobs


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


class Net(nn.Module):
    """A model that draws its weights when it is made."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(int(torch.Size(input_shape).numel()), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


def equal_states(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_a_module_is_never_touched_so_the_next_run_starts_from_it_again(tmp_path: Path) -> None:
    module, untouched = net(), net()
    learn(tmp_path / "first", "fedavg", model=module)
    assert equal_states(module, untouched)
    second = learn(tmp_path / "second", "special", lam=0.3, model=module)
    fresh = learn(tmp_path / "fresh", "special", lam=0.3, model=untouched)
    assert second.model_sha256 == fresh.model_sha256
    fedspecial.evaluate(tmp_path / "second", rotated_blobs(), model=module)
    assert equal_states(module, net())


def test_all_runs_of_a_comparison_start_from_the_weights_of_the_module(tmp_path: Path) -> None:
    quick = {**QUICK, "rounds": 1, "client_lr": 1e-9}
    table = fedspecial.compare(rotated_blobs(), ["fedavg"], [1, 2], model=net(), out=tmp_path, **quick)
    assert len(table.results["fedavg"]) == 2
    for seed in (1, 2):
        found = load_file(tmp_path / f"fedavg-{seed}" / "model.safetensors")
        assert torch.allclose(found["0.weight"], net()[0].weight, atol=1e-6)


def test_the_weights_that_a_function_draws_depend_on_the_seed_alone(tmp_path: Path) -> None:
    def run(name: str, **given: object) -> str:
        torch.manual_seed(hash(name) % 1000)
        return learn(tmp_path / name, model=Net, **given).model_sha256

    assert run("a", seed=1) == run("b", seed=1) != run("c", seed=2)
    by_lambda = learn(tmp_path / "d", model=lambda: Net((6,), 3), seed=1)
    assert by_lambda.model_sha256 == run("e", seed=1)
    assert "model:\n  object: lambda\n" in (tmp_path / "d" / "config.yaml").read_text()


def test_a_function_grows_with_the_classes_and_resumes(tmp_path: Path) -> None:
    whole = learn(tmp_path / "whole", benchmark=growing(), model=Net)
    (tmp_path / "whole" / "result.json").unlink()
    again = fedspecial.resume(tmp_path / "whole", benchmark=growing(), model=Net)
    assert again.model_sha256 == whole.model_sha256


@pytest.mark.parametrize("model", [net(), Net, lambda: Net((6,), 3)], ids=["module", "class", "lambda"])
def test_worker_processes_train_the_same_model(tmp_path: Path, model: nn.Module) -> None:
    here = learn(tmp_path / "here", model=model, rounds=1)
    there = learn(tmp_path / "there", model=model, rounds=1, workers=2)
    assert here.model_sha256 == there.model_sha256


def test_integer_buffers_are_saved_with_the_model(tmp_path: Path) -> None:
    class Lookup(nn.Module):
        """Reads its inputs in an order that was drawn when it was made."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("order", torch.randperm(6))
            self.register_buffer("mask", torch.tensor([0.0, float("-inf"), 0.0]))
            self.norm = nn.BatchNorm1d(6, momentum=None)
            self.fc = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.norm(x[:, self.order]))

    torch.manual_seed(3)
    module = Lookup()
    learn(tmp_path / "run", model=module)
    state = load_file(tmp_path / "run" / "model.safetensors")
    assert state.keys() == module.state_dict().keys()
    assert torch.equal(state["order"], module.order)
    assert state["norm.num_batches_tracked"].dtype == torch.int64
    x = rotated_blobs().domains[0].test.x
    first, second = Lookup(), Lookup()
    assert not torch.equal(first.order, second.order)
    for made in (first, second):
        made.load_state_dict(state)
    assert torch.equal(first.eval()(x), second.eval()(x))
    tested = fedspecial.evaluate(tmp_path / "run", rotated_blobs(), model=Lookup)
    again = fedspecial.evaluate(tmp_path / "run", rotated_blobs(), model=module)
    assert tested == again


def test_tied_weights_are_one_weight(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.fc = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.second(torch.relu(self.first(x))))

    learn(tmp_path / "run", model=Tied())
    state = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(state["first.weight"], state["second.weight"])
    assert state.keys() == Tied().state_dict().keys()


class Named(nn.Module):
    """Takes a batch by name and returns an object with scores, like a Hugging Face model."""

    def __init__(self, form: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.form = nn.Linear(6, 3), form

    def forward(self, x: Tensor) -> object:
        scores = self.fc(x)
        return {"object": SimpleNamespace(logits=scores), "dict": {"logits": scores}, "tuple": (scores, x)}.get(
            self.form, scores
        )


@pytest.mark.parametrize("form", ["object", "dict", "tuple"])
@pytest.mark.parametrize("method", ["special", "flwf2t"])
def test_scores_are_taken_from_the_output(tmp_path: Path, method: str, form: str) -> None:
    plain = learn(tmp_path / "plain", method, model=Named("tensor"), rounds=1)
    assert learn(tmp_path / "run", method, model=Named(form), rounds=1).model_sha256 == plain.model_sha256


def test_models_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path) -> None:
    class Locked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.lock = threading.Lock()

    class Silent(nn.Linear):
        def forward(self, x: Tensor) -> dict:
            return {"loss": super().forward(x).sum()}

    def fails() -> nn.Module:
        raise RuntimeError("out of ideas")

    refusals = (
        (3, r"model=3: expected a name, a torch\.nn\.Module, or a function that returns one"),
        (Locked(), r"model=Locked: it cannot be copied \(TypeError.*model=lambda"),
        (Silent(6, 3), "model: its output is a dict without scores"),
        (fails, r"model='fails': calling it with no arguments failed \(RuntimeError: out of ideas"),
        (lambda: "text", "model='lambda': it returned str, expected a torch.nn.Module"),
    )
    for number, (model, words) in enumerate(refusals):
        with pytest.raises(InputError, match=words) as refused:
            learn(tmp_path / str(number), model=model)
        assert "\n" not in str(refused.value)
    assert learn(tmp_path / "locked", model=Locked).acc > 0


def test_an_object_that_cannot_be_sent_to_workers_is_refused_in_one_line(tmp_path: Path) -> None:
    class Local(nn.Linear):
        """Its class cannot be imported by a worker process."""

    with pytest.raises(InputError, match=r"workers=2: an object of this run cannot be sent to worker processes"):
        learn(tmp_path / "run", model=lambda: Local(6, 3), workers=2)


def test_copies_keep_the_module_on_images_too(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 2))
    before = copy.deepcopy(module)
    learn(tmp_path / "run", "special", images(), model=module)
    assert equal_states(module, before)
