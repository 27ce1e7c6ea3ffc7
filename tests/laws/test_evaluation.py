"""Laws of evaluation: inputs are normalised, every test sample counts once, statistics are the right client's."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedspecial import Benchmark, Domain
from fedspecial.core.events import read_events
from fedspecial.engine.run import measure
from fedspecial.methods.base import ClientContext, Method
from toy_problems import begin, images, learn, play, rotated_blobs


def test_pixels_are_normalised_per_channel_as_computed_by_hand() -> None:
    """(x/255 − mean)/std for x = 0, 51, 255. Mean ¼, std ½: −½, −1/10, 3/2. Mean 1, std 2: −½, −2/5, 0."""
    benchmark = Benchmark("b", images().domains, ("left", "right"), mean=(0.25, 1.0), std=(0.5, 2.0))
    pixels = torch.tensor([[0, 51, 255], [0, 51, 255]], dtype=torch.uint8).view(1, 2, 1, 3)
    expected = torch.tensor([[-0.5, -0.1, 1.5], [-0.5, -0.4, 0.0]]).view(1, 2, 1, 3)
    assert torch.allclose(benchmark.inputs(pixels), expected, atol=1e-6)


class SignOfInput(nn.Module):
    """Predicts class 1 for positive inputs and class 0 for others, whatever is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([-x, x], dim=1) + 0 * self.unused


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 600])
def test_every_test_sample_counts_once(rows: int, tmp_path: Path) -> None:
    """Only the last sample is classified correctly, and it may be alone in its batch: the accuracy is one in `rows`."""
    x, y = -torch.ones(rows, 1), torch.ones(rows, dtype=torch.int64)
    x[-1] = 1.0
    train = torch.tensor([[1.0], [-1.0]] * 16), torch.tensor([1, 0] * 16)
    domain = Domain.of("only", train, (x, y))
    result = learn(tmp_path / "run", "fedavg", Benchmark("signs", (domain,), ("no", "yes"), kind="table"),
                   model=SignOfInput(), width=None, rounds=1, local_epochs=1)  # fmt: skip
    assert result.matrix == [[1 / rows]]


def test_local_batch_norm_is_evaluated_with_the_statistics_of_each_client(tmp_path: Path) -> None:
    """Client 0 trains on the value 10 and client 1 on −10, and nothing but their statistics differs.

    One step with momentum 0.1: running means 1 and −1. A test sample 0 is then below the mean of client 0 (class 0) and
    above that of client 1 (class 1); a sample 20 is above both. With label 1 for both samples, client 0 is right on
    one of two and client 1 on both: the mean is ¾. With the statistics of client 0 it would be ½; of client 1: 1.
    """
    values = torch.tensor([[10.0]] * 4 + [[-10.0]] * 4)
    test = torch.tensor([[0.0], [20.0]]), torch.ones(2, dtype=torch.int64)
    domain = Domain.of("only", (values, torch.tensor([0, 1] * 4)), test)
    module = nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 2))
    with torch.no_grad():
        module[1].weight.copy_(torch.tensor([[-1.0], [1.0]]))
        module[1].bias.zero_()
    run = begin(
        tmp_path / "run", "fedavg", Benchmark("means", (domain,), ("a", "b"), kind="table"), module=module,
        clients=2, clients_per_round=2, rounds=1, local_steps=1, local_epochs=None, batch_size=4, client_lr=0.0,
        min_per_client=0, batch_norm="local",
    )  # fmt: skip
    run.federation.rows = lambda task, client: np.arange(4) + 4 * client  # type: ignore[method-assign]
    assert measure(play(run), 1, [1]) == [{"accuracy": 0.75}]


@pytest.mark.parametrize(
    ("every", "evaluated"), [(0, []), (1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (3, [2, 4]), (5, [4]), (9, [4])]
)
def test_every_nth_round_is_evaluated_and_always_the_last(every: int, evaluated: list[int], tmp_path: Path) -> None:
    play(begin(tmp_path / "run", benchmark=rotated_blobs(tasks=2), rounds=5, local_steps=1, local_epochs=None,
               eval_every=every))  # fmt: skip
    rounds = [event for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "round"]
    for task in (1, 2):
        assert [event["round"] for event in rounds if event["task"] == task and event["accuracy"]] == evaluated


def test_positions_in_a_prediction_count_all_test_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """600 samples in batches of 256, 256 and 88, numbered from 0 to 599."""
    positions: list[list[int]] = []

    def predict(method: Method, context: ClientContext, x: Tensor) -> Tensor:
        positions.append(context.positions.tolist())
        return torch.zeros(len(x), 3)

    run = begin(tmp_path / "run", benchmark=rotated_blobs(tasks=1, rows=600))
    monkeypatch.setattr(Method, "predict", predict)
    with contextlib.closing(run.log):
        measure(run, 1, [1])
    assert [len(batch) for batch in positions] == [256, 256, 88]
    assert list(itertools.chain(*positions)) == list(range(600))
