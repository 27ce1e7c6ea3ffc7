"""Data for tuning: part of the training samples becomes the test set, and the real test set is not used."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedspecial import InputError
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.samples import Domain
from toy_problems import images


def test_the_held_out_part_comes_from_the_training_samples_alone() -> None:
    benchmark = images(tasks=2, rows=60)
    held = benchmark.held_out(0.2, seed=25)
    for before, after in zip(benchmark.domains, held.domains, strict=True):
        assert (len(after.train), len(after.test)) == (48, 12)
        assert torch.equal(after.test.y.bincount(), torch.tensor([6, 6])), "the same number of each class"
        rows = {tuple(x.flatten().tolist()) for x in before.train.x}
        parts = [{tuple(x.flatten().tolist()) for x in part.x} for part in (after.train, after.test)]
        assert parts[0] | parts[1] == rows
        assert not parts[0] & parts[1]


def test_the_seed_determines_the_held_out_part() -> None:
    a, b, c = (images().held_out(0.25, seed).domains[0].test.x for seed in (25, 25, 26))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_rows_of_given_sites_are_not_held_out() -> None:
    domain = images().domains[0]
    sites = Domain(domain.name, domain.train, domain.test, sites=(np.arange(64),))
    with pytest.raises(InputError, match=r"holdout=0\.5"):
        Benchmark("sites", (sites,), ("left", "right")).held_out(0.5, 25)
