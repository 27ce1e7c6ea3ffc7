"""Targets are class numbers or class names; anything else is never truncated to classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedspecial
from fedspecial import Benchmark, Domain, InputError
from fedspecial.data.samples import Samples
from toy_problems import QUICK

X = torch.zeros(4, 2)
WHOLE = torch.tensor([0, 1, 0, 1])
NAMES = ["oak", "fir", "oak", "fir"]


@pytest.mark.parametrize(
    "labels",
    [WHOLE, WHOLE.int(), WHOLE.bool(), WHOLE.numpy(), WHOLE.tolist(), np.array([0, 1, 0, 1], np.uint8)],
)
def test_whole_numbers_are_class_labels(labels: Any) -> None:
    assert torch.equal(Samples.of((X, labels)).y, WHOLE)


@pytest.mark.parametrize("labels", [[0.9, 1.9, 0.1, 1.1], torch.tensor([0.9, 1.9, 0.1, 1.1]), np.ones((4, 2))])
def test_other_targets_are_refused_in_one_line(labels: Any, tmp_path: Path) -> None:
    domain = Domain.of("A", (X, labels), (X, labels))
    with pytest.raises(InputError, match=r"domain 'A' train: the targets are real numbers.*whole numbers") as refused:
        fedspecial.run([domain], out=tmp_path / "run", model="logistic", **QUICK)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_real_targets_of_a_data_set_are_refused_too() -> None:
    items = [(torch.zeros(2), value) for value in (0.2, 1.7)]
    with pytest.raises(InputError, match="real numbers"):
        Benchmark.of([Domain.of("A", items, items)]).check()


@pytest.mark.parametrize("form", [list, np.array, lambda names: np.array(names, dtype=object)])
def test_names_become_classes_in_alphabetical_order(form: Any) -> None:
    domain = Domain.of("A", (X, form(NAMES)), (X, form(NAMES)))
    benchmark = Benchmark.of([domain]).check()
    assert benchmark.classes == ("fir", "oak")
    assert benchmark.domains[0].train.y.tolist() == [1, 0, 1, 0]


def test_the_names_of_all_domains_are_numbered_together() -> None:
    first = Domain.of("A", (X, NAMES), (X, ["oak"] * 4))
    second = Domain.of("B", [(torch.zeros(2), "yew")], [(torch.zeros(2), "fir")])
    benchmark = Benchmark.of([first, second])
    assert benchmark.classes == ("fir", "oak", "yew")
    assert [d.train.y.tolist() for d in benchmark.domains] == [[1, 0, 1, 0], [2]]
    assert [d.test.y.tolist() for d in benchmark.domains] == [[1, 1, 1, 1], [0]]


def test_names_are_matched_with_the_classes_of_a_benchmark() -> None:
    domain = Domain.of("A", (X, NAMES), (X, NAMES))
    assert Benchmark("own", (domain,), ("oak", "fir")).domains[0].train.y.tolist() == [0, 1, 0, 1]
    with pytest.raises(InputError, match="domain 'A' train: the label 'fir' is not one of the classes oak"):
        Benchmark("own", (domain,), ("oak",))


def test_names_and_numbers_are_not_mixed() -> None:
    with pytest.raises(InputError, match="domain 'B': its labels are numbers, those of other domains are names"):
        Benchmark.of([Domain.of("A", (X, NAMES), (X, NAMES)), Domain.of("B", (X, WHOLE), (X, WHOLE))])


@pytest.mark.parametrize("labels", [[None] * 4, [{}] * 4, [[0], [1], [0], [1, 2]]])
def test_what_is_no_target_is_refused_in_one_line(labels: Any) -> None:
    with pytest.raises(InputError, match="domain 'A' train: ") as refused:
        Domain.of("A", (X, labels), (X, labels))
    assert "\n" not in str(refused.value)
