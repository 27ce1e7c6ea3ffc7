"""A client fills missing values from its own rows; test rows are filled from what the server could know."""

from __future__ import annotations

from pathlib import Path

import factories
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspecial.data import catalogue
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.benchmarks.heart import ALWAYS_KNOWN, FEATURES
from fedspecial.data.check import check
from fedspecial.data.impute import describe_missing, has_missing, impute
from fedspecial.data.partition import Partition, iid
from fedspecial.data.samples import Domain, Samples

NAN = float("nan")


def one_domain(train: list[list[float]], test: list[list[float]]) -> Benchmark:
    parts = [Samples(torch.tensor(x), torch.zeros(len(x), dtype=torch.long)) for x in (train, test)]
    return Benchmark("t", (Domain("d", parts[0], parts[1]),), ("a",), kind="table")


def test_imputed_values_equal_those_computed_by_hand() -> None:
    benchmark = one_domain([[1.0, NAN], [3.0, NAN], [NAN, NAN], [10.0, 4.0], [NAN, 8.0]], [[NAN, NAN], [5.0, 5.0]])
    parts = Partition.of([np.array([0, 1, 2]), np.array([3, 4])])
    domain = impute(benchmark, [parts]).domains[0]
    assert domain.train.x.tolist() == [[1, 0], [3, 0], [2, 0], [10, 4], [10, 8]]
    assert domain.test.x.tolist() == [[6, 3], [5, 5]]


@given(seed=st.integers(0, 200))
@settings(max_examples=25)
def test_a_clients_values_do_not_depend_on_other_clients(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(24, 3)).astype(np.float32)
    x[rng.random(x.shape) < 0.4] = np.nan
    parts = iid(np.zeros(24), 3, rng=rng)
    other = x.copy()
    other[parts.rows(1)] += 5
    mine = [impute(one_domain(values.tolist(), [[0.0] * 3]), [parts]).domains[0].train.x for values in (x, other)]
    for client in (0, 2):
        assert torch.equal(mine[0][parts.rows(client)], mine[1][parts.rows(client)])
    assert not mine[0].isnan().any()
    known = ~np.isnan(x)
    assert np.array_equal(mine[0].numpy()[known], x[known])


def test_a_client_without_rows_does_not_count() -> None:
    benchmark = one_domain([[2.0], [4.0]], [[NAN]])
    parts = Partition.of([np.array([0, 1]), np.array([], np.int64)])
    assert impute(benchmark, [parts]).domains[0].test.x.tolist() == [[3.0]]


def test_other_kinds_of_data_are_unchanged() -> None:
    benchmark = catalogue.load("digits-shift", cap=20)
    assert impute(benchmark, []) is benchmark


def test_indicator_columns_of_heart_show_missing_values(tmp_path: Path) -> None:
    benchmark = catalogue.load("heart", data=factories.heart(tmp_path))
    assert benchmark.task_names == ["cleveland", "hungary", "switzerland", "va"]
    names = list(FEATURES)
    shown = [name for name in names if name not in ALWAYS_KNOWN]
    for domain in benchmark.domains:
        x = domain.train.x
        assert x.shape[1] == 13 + 10
        for column, name in enumerate(shown):
            assert torch.equal(x[:, 13 + column] == 1, x[:, names.index(name)].isnan())
    swiss = benchmark.domains[2].train.x
    assert swiss[:, names.index("chol")].isnan().all()


def test_the_scale_of_heart_does_not_depend_on_the_data(tmp_path: Path) -> None:
    """A patient's values do not depend on the other patients in the file."""
    factories.heart(tmp_path / "few", 24)
    factories.heart(tmp_path / "many", 60)
    ages = []
    for folder in ("few", "many"):
        x = catalogue.load("heart", data=tmp_path / folder).domains[0]
        ages.append(set(torch.cat([x.train.x, x.test.x])[:, 0].tolist()))
    assert ages[0] < ages[1]


def test_missing_values_are_counted_by_domain_and_column(tmp_path: Path) -> None:
    benchmark = one_domain([[1.0, NAN], [3.0, NAN]], [[NAN, 1.0]])
    assert describe_missing(benchmark) == [
        "domain 'd': missing values, filled in by each client from its own rows: column 0 1, column 1 2"
    ]
    assert describe_missing(one_domain([[1.0, 2.0]], [[0.0, 1.0]])) == []
    heart = catalogue.load("heart", data=factories.heart(tmp_path))
    assert "thal 16, " in (describe_missing(heart)[0] + ", ")


def test_values_that_are_missing_only_in_test_rows_are_filled() -> None:
    benchmark = one_domain([[2.0], [4.0]], [[NAN]])
    assert has_missing(benchmark)


def test_check_counts_missing_values_by_domain_and_column(tmp_path: Path) -> None:
    rows = "".join(f"{d},{n % 2},{'' if n < 3 else n},{n}\n" for d in ("east", "west") for n in range(8))
    (tmp_path / "t.csv").write_text("domain,label,age,height\n" + rows)
    notes = [finding.line for finding in check("folders", data=tmp_path / "t.csv") if finding.level == "note"]
    assert notes == [
        f"domain '{name}': missing values, filled in by each client from its own rows: age 3"
        for name in ("east", "west")
    ]
