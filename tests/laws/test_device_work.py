"""Work on a device such as a GPU: what may wait for it, and what a run sets up for it. Tested on the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import call, patch

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedspecial import methods
from fedspecial.config import Config
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.streams import preserve_torch_rng, seed_torch
from fedspecial.engine.aggregation.mean import RunningMean
from fedspecial.engine.clients import client as client_module
from fedspecial.engine.clients import local
from fedspecial.errors import InputError
from fedspecial.methods.base import LocalData
from fedspecial.runs.devices import device_of, torch_settings
from toy_problems import begin, images, learn, play

READS = ("item", "cpu", "tolist", "__bool__", "__float__", "__int__", "__index__", "nonzero")
"""Methods of a tensor that wait for the device when the tensor is there. (`numpy` never waits: it refuses.)"""
TINY = {"generator_width": 4, "latent": 8, "synthetic": 8, "iterations": 2, "server_iterations": 1, "gan_size": 8}


class CountedOperations(TorchDispatchMode):
    """Operations that wait for the device, because the size of their result depends on values."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        masked = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if masked or name in ("bincount", "nonzero", "unique", "_unique2", "masked_select", "equal"):
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


@contextmanager
def counted_reads() -> Iterator[list[str]]:
    """The reads of tensor values, by name, as they happen."""
    seen: list[str] = []

    def counting(name: str) -> Any:
        original = getattr(Tensor, name)

        def read(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return original(*args, **kwargs)

        return read

    with patch.multiple(Tensor, **{name: counting(name) for name in READS}), CountedOperations(seen):
        yield seen


def reads_in_training(folder: Path, method: str, steps: int, **settings: Any) -> int:
    """How often the clients of a run read a value from a tensor while they train."""
    total = 0

    def train(*args: Any) -> Any:
        nonlocal total
        with counted_reads() as seen:
            update = local.train(*args)
        total += len(seen)
        return update

    own = {name: value for name, value in TINY.items() if name in methods.find(method).__dataclass_fields__}
    settings = {**own, "model": "cnn", "width": 4, "rounds": 2, "local_epochs": None, "local_steps": steps, **settings}
    with patch.object(client_module, "train", train):
        play(begin(folder, method, images(tasks=2), **settings))
    return total


def assert_reads_do_not_depend_on_the_steps(folder: Path, method: str, **settings: Any) -> None:
    few, many = (reads_in_training(folder / str(steps), method, steps, **settings) for steps in (2, 9))
    assert few == many > 0


@pytest.mark.parametrize("method", methods.names())
def test_local_training_reads_from_the_device_once_and_not_in_every_step(tmp_path: Path, method: str) -> None:
    assert_reads_do_not_depend_on_the_steps(tmp_path, method)


@pytest.mark.parametrize(
    "settings", [{"estimate": True}, {"momentum": 0.9}, {"optimizer": "adamw"}, {"precision": "bfloat16"}]
)
def test_no_way_of_training_reads_from_the_device_in_every_step(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert_reads_do_not_depend_on_the_steps(tmp_path, "fedprox", **settings)


@pytest.mark.parametrize("signal", ["pseudo_negative", "confidence"])
def test_no_kind_of_familiarity_reads_from_the_device_in_every_step(tmp_path: Path, signal: str) -> None:
    assert_reads_do_not_depend_on_the_steps(tmp_path, "pfeddil", signal=signal)


def test_the_mean_loss_and_the_largest_gradient_are_those_of_reading_every_step(tmp_path: Path) -> None:
    losses: list[list[float]] = []
    gradients: list[list[float]] = []
    original = local._gradients

    def recorded(loss: Tensor, parameters: Any) -> list[Tensor]:
        found = original(loss, parameters)
        losses[-1].append(loss.item())
        gradients[-1].append(torch.stack(torch._foreach_norm(found)).norm().item())
        return found

    def train(*args: Any) -> Any:
        losses.append([])
        gradients.append([])
        update = local.train(*args)
        total = 0.0
        for loss in losses[-1]:
            total += loss
        assert update.loss == total / len(losses[-1])
        assert update.numbers["max_grad"] == max(gradients[-1])
        return update

    with patch.object(local, "_gradients", recorded), patch.object(client_module, "train", train):
        play(begin(tmp_path / "run", estimate=True))
    assert losses


def test_batches_are_selected_where_the_data_is() -> None:
    x, y, rows = torch.arange(12.0).view(6, 2), torch.arange(6), np.array([1, 3, 5])
    moved = (x + 100, y + 100)
    data = LocalData(x, y, rows, lambda part: part, torch.device("cpu"), moved)
    ((found, labels),) = data.batches()
    assert torch.equal(found, moved[0][torch.from_numpy(rows)])
    assert labels.tolist() == [101, 103, 105]
    assert data.labels.tolist() == [1, 3, 5], "methods still read labels from the CPU"


@pytest.mark.parametrize("name", methods.names())
def test_every_method_learns_in_mixed_precision_and_keeps_float32_weights(name: str, tmp_path: Path) -> None:
    own = {key: value for key, value in TINY.items() if key in methods.find(name).__dataclass_fields__}
    settings = {**own, "model": "cnn", "width": 4, "rounds": 2}
    models = {}
    for precision in ("float32", "bfloat16"):
        run = play(begin(tmp_path / precision, name, images(tasks=2), precision=precision, **settings))
        models[precision] = run.vector
        assert run.vector.dtype == torch.float32
        assert torch.isfinite(run.vector).all()
        rounds = of_kind(read_events(tmp_path / precision / "events.jsonl"), "round")
        assert all(event["num_accepted"] == 3 for event in rounds)
    if name != "local":  # its global model is never trained
        assert not torch.equal(models["float32"], models["bfloat16"])


def test_the_generators_of_gpus_in_use_follow_the_streams_and_are_put_back() -> None:
    gpu = torch.Generator().manual_seed(3)
    before = gpu.get_state()
    with (
        patch.object(torch.cuda, "is_initialized", lambda: True),
        patch.object(torch.cuda, "default_generators", (gpu,)),
    ):
        with preserve_torch_rng():
            seed_torch(25, "torch", 1, 2, 3)
            first = torch.rand(3, generator=gpu)
            seed_torch(25, "torch", 1, 2, 3)
            assert torch.equal(torch.rand(3, generator=gpu), first)
        assert torch.equal(gpu.get_state(), before)


def test_deterministic_algorithms_are_set_for_the_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with torch_settings(Config(deterministic=True)):
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_run_leaves_the_choice_of_algorithms_alone_unless_it_sets_it() -> None:
    """Each call imports torch's compiler: more than a second of processor time for every process of a run."""
    with patch.object(torch, "use_deterministic_algorithms") as called, torch_settings(Config()):
        pass
    called.assert_not_called()
    with patch.object(torch, "use_deterministic_algorithms") as called, torch_settings(Config(deterministic=True)):
        pass
    assert called.call_args_list == [call(True), call(False, warn_only=False)]


def test_on_the_cpu_deterministic_changes_nothing(tmp_path: Path) -> None:
    results = [learn(tmp_path / str(value), "special", deterministic=value) for value in (False, True)]
    assert results[0].model_sha256 == results[1].model_sha256


@pytest.mark.parametrize("device", ["cuda:7", "meta", "toaster"])
def test_a_device_that_cannot_compute_is_refused_in_one_line(device: str) -> None:
    with pytest.raises(InputError, match=f"^device={device}: torch cannot use it on this machine; choose one of cpu"):
        device_of(Config(device=device))


def test_the_mean_is_on_the_device_of_the_deltas() -> None:
    mean = RunningMean()
    mean.add({"theta": torch.ones(3)})
    mean.add({"theta": torch.full((3,), 2.0)}, weight=3)
    assert torch.equal(mean.result()["theta"], torch.full((3,), 1.75))
