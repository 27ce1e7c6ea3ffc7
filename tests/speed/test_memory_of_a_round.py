"""Memory of a round and sizes of messages. No test here measures time."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedspecial.core.messages import Update, pack, packed_size, update_size
from fedspecial.engine.aggregation.mean import RunningMean

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def live_tensors(size: int) -> int:
    """How many tensors of that length exist."""
    gc.collect()
    return sum(type(thing) is torch.Tensor and thing.shape == (size,) for thing in gc.get_objects())


@pytest.mark.parametrize("size", [1009, 300_007])
def test_a_running_mean_keeps_one_vector_however_many_clients(size: int) -> None:
    before = live_tensors(size)
    mean = RunningMean()
    for client in range(50):
        mean.add({"theta": torch.full((size,), float(client))})
    assert live_tensors(size) - before == 1
    assert torch.equal(mean.result()["theta"], torch.full((size,), 24.5))


@pytest.mark.parametrize("size", [5, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, 300_007])
def test_sums_do_not_depend_on_block_boundaries(size: int) -> None:
    parts = [torch.randn(size, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    mean = RunningMean()
    for number, part in enumerate(parts, start=1):
        mean.add({"theta": part}, number)
    expected = sum(number * part.double() for number, part in enumerate(parts, start=1)) / 6
    assert torch.equal(mean.result()["theta"], expected.float())


def test_a_message_is_measured_without_packing_it() -> None:
    tensors = {"theta": torch.zeros(7), "mask": torch.zeros(3, dtype=torch.bool), "n": torch.zeros(2, 2).long()}
    numbers = {"steps": 3, "loss": 0.5}
    assert packed_size(tensors, numbers) == len(pack(tensors, numbers))
    update = Update(3, {"theta": torch.zeros(7)}, 6, 60, 0.25, {"score": 1.5})
    named = {"client": 3, "steps": 6, "samples": 60, "loss": 0.25, "score": 1.5}
    assert update_size(update) == len(pack(update.deltas, named))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["tiny_round", "resnet_round", "server_step", "memory", "many_clients", "typical_implementation"]
)
def test_every_benchmark_runs(name: str) -> None:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
