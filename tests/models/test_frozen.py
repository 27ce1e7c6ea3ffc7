"""Only trainable weights travel: frozen ones stay where they are, and are stored once."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedspecial
from fedspecial import Benchmark, InputError, Update, methods
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.messages import update_size
from fedspecial.core.vector import FlatModel
from fedspecial.data.samples import Samples
from fedspecial.models import build
from toy_problems import growing, images, learn, rotated_blobs

TRAINABLE = 5 * 3 + 3


class Net(nn.Module):
    """A frozen body, which is not the same in every module, under a head."""

    def __init__(self, seed: int = 0, outputs: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(5, outputs)
        torch.manual_seed(seed)
        self.body = nn.Linear(6, 5).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.body(x)))


def file_of(folder: Path) -> Path:
    (path,) = folder.glob("frozen-*.safetensors")
    return path


def test_bytes_memory_and_checkpoint_count_trainable_weights_only(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", lam=0.3, model=Net())
    update = Update(0, {"theta": torch.zeros(TRAINABLE)}, 1, 1, 0.0)
    assert result.bytes_up == update_size(update)
    assert result.client_memory_paper_bytes == 4 * TRAINABLE
    (started,) = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "run_started")
    assert (started["num_weights"], started["num_frozen"]) == (TRAINABLE, 6 * 5 + 5)
    blobs = list((tmp_path / "run" / "checkpoint" / "blobs").iterdir())
    assert all(path.stat().st_size < 4 * TRAINABLE + 100 for path in blobs)


def test_the_frozen_part_is_stored_once_and_the_hash_of_the_model_covers_it(tmp_path: Path) -> None:
    one = learn(tmp_path / "one", model=Net(), client_lr=1e-12, rounds=1)
    other = learn(tmp_path / "other", model=Net(seed=1), client_lr=1e-12, rounds=1)
    assert one.model_sha256 != other.model_sha256
    trained, frozen = load_file(tmp_path / "one" / "model.safetensors"), load_file(file_of(tmp_path / "one"))
    assert trained.keys() == {"fc.weight", "fc.bias"}
    assert torch.equal(frozen["body.weight"], Net().body.weight)
    assert frozen.keys() == {"body.weight", "body.bias"}


def test_without_frozen_weights_there_is_no_file_and_the_hash_is_that_of_layout_and_values(tmp_path: Path) -> None:
    learn(tmp_path / "run", model=Net().requires_grad_(True), rounds=1)
    assert not list((tmp_path / "run").glob("frozen-*"))
    assert FlatModel(Net().requires_grad_(True)).layout.frozen is None


def test_a_frozen_body_is_a_fixed_transformation_of_the_inputs(tmp_path: Path) -> None:
    module = Net()

    def through_the_body(samples: Samples) -> Samples:
        return replace(samples, x=torch.tanh(module.body(samples.x)))

    plain = rotated_blobs()
    parts = [replace(d, train=through_the_body(d.train), test=through_the_body(d.test)) for d in plain.domains]
    transformed = Benchmark("blobs", tuple(parts), plain.classes, kind="table")
    learn(tmp_path / "whole", "special", plain, lam=0.3, model=module)
    learn(tmp_path / "head", "special", transformed, lam=0.3, model=copy.deepcopy(module.fc))
    whole, head = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "head"))
    assert torch.allclose(whole["fc.weight"], head["weight"], atol=1e-5)


def test_frozen_batch_norm_is_in_evaluation_mode_and_keeps_its_statistics(tmp_path: Path) -> None:
    body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.BatchNorm1d(5, affine=False))
    module = nn.Sequential(body.requires_grad_(False), nn.Linear(5, 3))
    model = FlatModel(module)
    model.train()
    assert [part.training for part in body] == [True, False, True, False]
    assert not model.has_batch_norm
    assert [slot.name for slot in model.layout.slots] == ["1.weight", "1.bias"]
    result = learn(tmp_path / "run", model=module, batch_size=1, local_epochs=0.2, rounds=1)
    assert result.acc > 0
    frozen = load_file(file_of(tmp_path / "run"))
    assert torch.equal(frozen["0.1.running_mean"], torch.zeros(5))
    assert torch.equal(frozen["0.3.running_var"], torch.ones(5))


def test_batch_norm_without_weights_is_trained_where_the_module_around_it_is() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3).requires_grad_(False))
    model = FlatModel(module)
    model.train()
    assert model.has_batch_norm
    assert module[1].training
    assert "1.running_mean" in {slot.name for slot in model.layout.slots}


def test_a_model_without_trainable_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model: it has no weights to learn \(none has requires_grad=True\)"):
        learn(tmp_path / "run", model=Net().requires_grad_(False))


def test_resuming_with_other_frozen_weights_is_refused_and_evaluating_reads_the_stored_ones(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", model=Net())
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(InputError, match=r"another model .*frozen weights differ"):
        fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs(), model=Net(seed=1))
    again = fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs(), model=Net())
    assert again.model_sha256 == result.model_sha256
    tested = fedspecial.evaluate(tmp_path / "run", rotated_blobs(), model=Net(seed=1))
    assert list(tested.values()) == pytest.approx(result.matrix[-1])
    path = file_of(tmp_path / "run")
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(InputError, match="it was changed after it was written"):
        fedspecial.evaluate(tmp_path / "run", rotated_blobs(), model=Net())


@pytest.mark.parametrize("method", methods.names())
def test_every_method_leaves_frozen_weights_as_they_are(method: str, tmp_path: Path) -> None:
    sizes = {"mfcl": {"iterations": 2, "generator_width": 4, "latent": 8, "synthetic": 8},
             "fedcil": {"generator_width": 4, "gan_size": 16, "server_iterations": 1}}  # fmt: skip
    module = build("cnn", input_shape=(3, 8, 8), num_classes=2, width=4)
    for name in ("conv1", "bn1", "conv2"):
        getattr(module, name).requires_grad_(False)
    untouched = copy.deepcopy(module.state_dict())
    learn(tmp_path / "run", method, images(), model=module, rounds=1, local_epochs=1, **sizes.get(method, {}))
    trained, frozen = load_file(tmp_path / "run" / "model.safetensors"), load_file(file_of(tmp_path / "run"))
    assert {name.partition(".")[0] for name in frozen} == {"conv1", "bn1", "conv2"}
    assert all(torch.equal(value, untouched[name]) for name, value in frozen.items())
    # Without a federation the global model stays the initial one.
    assert torch.equal(trained["conv3.weight"], untouched["conv3.weight"]) == (method == "local")


def test_workers_train_the_same_model(tmp_path: Path) -> None:
    here = learn(tmp_path / "here", "special-c", model=Net(), rounds=1)
    there = learn(tmp_path / "there", "special-c", model=Net(), rounds=1, workers=2)
    assert here.model_sha256 == there.model_sha256


class Growing(nn.Module):
    """A frozen body under a head with two outputs, which a class-incremental run makes wider."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Tanh()).requires_grad_(False)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


@pytest.mark.parametrize("method", ["special", "flwf2t"])
def test_the_head_grows_over_a_frozen_body(tmp_path: Path, method: str) -> None:
    learn(tmp_path / "run", method, growing(), model=Growing(), rounds=1)
    assert load_file(tmp_path / "run" / "model.safetensors")["fc.weight"].shape == (4, 5)
    assert torch.equal(load_file(file_of(tmp_path / "run"))["body.1.weight"], Growing().body[1].weight)


def test_a_frozen_head_cannot_grow(tmp_path: Path) -> None:
    module = Growing()
    module.body.requires_grad_(True)
    module.fc.requires_grad_(False)
    with pytest.raises(InputError, match="model: the head `fc` is frozen"):
        learn(tmp_path / "run", benchmark=growing(), model=module, rounds=1)


# --- other types of numbers -----------------------------------------------------------------------------------------


def typed(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_models_of_other_types_learn_and_keep_their_type(tmp_path: Path, dtype: torch.dtype, optimizer: str) -> None:
    settings = {"optimizer": optimizer, "client_lr": 0.1 if optimizer == "sgd" else 0.01}
    result = learn(tmp_path / "run", "special-c", model=typed(dtype), **settings)
    assert result.matrix[0][0] > 0.6
    state = load_file(tmp_path / "run" / "model.safetensors")
    assert all(value.dtype in (dtype, torch.int64) for value in state.values())
    assert not torch.equal(state["1.running_mean"].float(), torch.zeros(5))
    assert (
        list(fedspecial.evaluate(tmp_path / "run", rotated_blobs(), model=typed(dtype)).values()) == result.matrix[-1]
    )


def test_float64_is_computed_in_float64(tmp_path: Path) -> None:
    """Steps that float32 cannot resolve change a float64 model, on its way through workers too."""
    settings = {"rounds": 1, "client_lr": 1e-12, "local_epochs": 1}
    here = learn(tmp_path / "here", model=typed(torch.float64), **settings)
    there = learn(tmp_path / "there", model=typed(torch.float64), workers=2, **settings)
    assert here.model_sha256 == there.model_sha256
    moved = load_file(tmp_path / "here" / "model.safetensors")["0.weight"] - typed(torch.float64)[0].weight
    assert 0 < float(moved.detach().abs().max()) < 1e-10


def test_small_steps_add_up_in_a_bfloat16_model(tmp_path: Path) -> None:
    """The vector is float32, so a step that is too small for bfloat16 is not lost."""
    start = typed(torch.bfloat16)[0].weight.detach().float()
    run = {"rounds": 20, "local_epochs": 1, "client_lr": 1e-4}
    learn(tmp_path / "run", benchmark=rotated_blobs(tasks=2), model=typed(torch.bfloat16), **run)
    exact = learn(tmp_path / "exact", benchmark=rotated_blobs(tasks=2), model=typed(torch.bfloat16).float(), **run)
    found, wanted = (load_file(tmp_path / n / "model.safetensors")["0.weight"].float() for n in ("run", "exact"))
    assert math.isfinite(exact.acc)
    assert float((wanted - start).norm()) > 0
    assert float((found - wanted).norm()) < 0.5 * float((wanted - start).norm()) + 0.01 * float(start.norm())


def test_a_bfloat16_body_with_a_float32_head_is_trained(tmp_path: Path) -> None:
    class Mixed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.body.to(torch.bfloat16).requires_grad_(True)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.tanh(self.body(x.bfloat16())).float())

    learn(tmp_path / "run", "special", model=Mixed())
    state = load_file(tmp_path / "run" / "model.safetensors")
    assert (state["body.weight"].dtype, state["fc.weight"].dtype) == (torch.bfloat16, torch.float32)
    assert not torch.equal(state["body.weight"], Mixed().body.weight)
