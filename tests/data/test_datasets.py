"""Map-style data sets are read batch by batch; dict and tuple inputs, transforms, classes of lists of domains."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import fedspecial
from fedspecial import Benchmark, Domain
from fedspecial.data.samples import Samples
from fedspecial.errors import InputError

QUICK: dict[str, Any] = {
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 8,
    "clients": 2,
    "clients_per_round": 2,
    "partition": "iid",
    "method": "fedavg",
    "client_lr": 0.1,
    "model": "logistic",
}


def points(row: int) -> Tensor:
    generator = torch.Generator().manual_seed(row)
    return torch.randn(4, generator=generator) + 2 * (row % 2)


class Points(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Computes its items; `read` counts them."""

    def __init__(self, length: int = 40, noise: bool = False) -> None:
        self.length, self.noise, self.read = length, noise, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        self.read += 1
        noise = torch.randn(4) + random.random() + float(np.random.rand()) if self.noise else 0  # noqa: NPY002
        return points(row) + noise, row % 2


def in_memory(length: int = 40) -> tuple[Tensor, Tensor]:
    return torch.stack([points(row) for row in range(length)]), torch.arange(length) % 2


def test_a_data_set_trains_the_same_model_as_its_arrays(tmp_path: Any) -> None:
    lazy = fedspecial.run([Domain.of("a", Points(), Points())], out=tmp_path / "lazy", **QUICK)
    arrays = fedspecial.run([Domain.of("a", in_memory(), in_memory())], out=tmp_path / "arrays", **QUICK)
    assert lazy.model_sha256 == arrays.model_sha256
    assert lazy.matrix == arrays.matrix


class Labelled(Points):
    @property
    def targets(self) -> list[int]:
        return [row % 2 for row in range(self.length)]


def test_labels_are_read_without_the_inputs_where_the_data_set_has_them() -> None:
    data = Labelled(10**6)
    samples = Samples.of(data)
    assert len(samples) == 10**6
    assert data.read <= 2
    assert samples.x[5:9].to(torch.device("cpu")).shape == (4, 4)
    assert data.read <= 6


def test_an_attribute_that_differs_from_the_items_is_not_used() -> None:
    """Data sets may transform their targets."""

    class Shifted(Labelled):
        def __getitem__(self, row: int) -> tuple[Tensor, int]:
            return points(row), 1 - row % 2

    assert Samples.of(Shifted(4)).y.tolist() == [1, 0, 1, 0]


class Huge(Labelled):
    """Each item would be 40 kB: a billion of them are 40 TB. Counts the items that exist at the same time."""

    alive = peak = 0

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        Huge.alive += 1
        Huge.peak = max(Huge.peak, Huge.alive)
        item = torch.full((10_000,), float(row % 2))
        import weakref

        weakref.finalize(item, self._gone)
        return item, row % 2

    @staticmethod
    def _gone() -> None:
        Huge.alive -= 1


def test_only_a_batch_is_in_memory(tmp_path: Any) -> None:
    fedspecial.run(
        [Domain.of("a", Huge(2000), Huge(600))],
        out=tmp_path / "run",
        **{**QUICK, "local_epochs": None, "local_steps": 3},
    )
    assert Huge.peak <= 2 * 256


def test_random_augmentation_is_random_and_repeatable(tmp_path: Any) -> None:
    samples = Samples.of(Points(8, noise=True))
    reader = samples.x.seeded(1, 1, 0, 0)  # type: ignore[operator]
    rows = torch.arange(4)
    first, second = reader.index_select(0, rows), reader.index_select(0, rows)
    assert not torch.equal(first, second)
    again = samples.x.seeded(1, 1, 0, 0)  # type: ignore[operator]
    assert torch.equal(again.index_select(0, rows), first)
    assert not torch.equal(samples.x.seeded(1, 1, 1, 0).index_select(0, rows), first)  # type: ignore[operator]
    before = torch.get_rng_state(), random.getstate()
    reader.index_select(0, rows)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_augmented_runs_are_repeatable(tmp_path: Any) -> None:
    domains = [Domain.of("a", Points(noise=True), Points())]
    one, two = (fedspecial.run(domains, out=tmp_path / name, **QUICK).model_sha256 for name in "ab")
    plain = fedspecial.run([Domain.of("a", Points(), Points())], out=tmp_path / "c", **QUICK).model_sha256
    assert one == two != plain


def double(x: Tensor) -> Tensor:
    return 2 * x


@pytest.mark.slow
def test_workers_read_the_same_augmented_samples(tmp_path: Any) -> None:
    domains = [Domain.of("a", Points(noise=True), Points(), transform=double)]
    one = fedspecial.run(domains, out=tmp_path / "one", **QUICK)
    two = fedspecial.run(domains, out=tmp_path / "two", **QUICK, workers=2)
    assert one.model_sha256 == two.model_sha256
    assert one.matrix == two.matrix


def test_a_transform_is_applied_to_each_sample_of_arrays_and_data_sets() -> None:
    for source in (in_memory(), Points()):
        domain = Domain.of("a", source, source, transform=double, test_transform=None)
        rows = torch.tensor([3, 0])
        assert torch.equal(domain.train.x.index_select(0, rows), 2 * in_memory()[0][rows])
        assert torch.equal(domain.test.x.index_select(0, rows), in_memory()[0][rows])
    benchmark = Benchmark.of([Domain.of("a", in_memory(), in_memory())]).with_transforms(double, double)
    assert torch.equal(benchmark.domains[0].test.x.to(torch.device("cpu")), 2 * in_memory()[0])


class WithDict(Points):
    def __getitem__(self, row: int) -> Any:
        return {"x": points(row), "extra": np.ones(1)}, row % 2


class TwoArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor, extra: Tensor) -> Tensor:
        scores: Tensor = self.fc(torch.cat([x, extra], 1))
        return scores


def test_dict_and_tuple_inputs_train_the_same_model(tmp_path: Any) -> None:
    """A dict gives the arguments of the model by name, a tuple in their order."""
    x, y = in_memory()
    extra, settings = torch.ones(40, 1), {**QUICK, "model": TwoArguments(), "rounds": 3}
    found = []
    for name, source in (("dict", ({"x": x, "extra": extra}, y)), ("tuple", ((x, extra), y)), ("lazy", WithDict())):
        result = fedspecial.run([Domain.of("a", source, source)], out=tmp_path / name, **settings)
        found.append((result.model_sha256, result.acc))
        assert fedspecial.evaluate(tmp_path / name, [Domain.of("a", source, source)], model=TwoArguments()) == {
            "a": result.acc
        }
    assert found[0] == found[1] == found[2]
    assert found[0][1] > 0.8


def test_the_samples_of_dicts_and_tuples_stay_together() -> None:
    x, y = in_memory(6)
    for inputs in ({"x": x, "extra": np.arange(6.0)[:, None]}, (x, torch.arange(6.0)[:, None])):
        samples = Samples.of((inputs, y)).take(np.array([4, 1]))
        batch = samples.x.index_select(0, torch.tensor([1, 0]))
        parts = list(batch.values() if isinstance(batch, dict) else batch)
        assert torch.equal(parts[0], x[[1, 4]])
        assert parts[1].tolist() == [[1.0], [4.0]]
        assert parts[1].dtype == torch.float32
    assert Benchmark.of([Domain.of("a", WithDict(), WithDict())]).kind == "other"


def test_the_classes_of_a_list_are_the_labels_of_all_domains() -> None:
    x = torch.zeros(2, 3)
    one = Domain.of("a", (x, torch.tensor([1, 4])), (x, torch.tensor([1, 7])))
    two = Domain.of("b", (x, torch.tensor([7, 1])), (x, torch.tensor([4, 1])))
    benchmark = Benchmark.of([one, two])
    assert benchmark.classes == ("1", "4", "7")
    assert benchmark.domains[0].train.y.tolist() == [0, 1]
    assert benchmark.domains[1].train.y.tolist() == [2, 0]
    with pytest.raises(InputError, match="label -1"):
        Benchmark.of([Domain.of("a", (x, torch.tensor([-1, 1])), (x, torch.tensor([0, 1])))])


def test_classes_can_be_named() -> None:
    x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    benchmark = Benchmark.of([Domain.of("a", (x, y), (x, y))], classes=("cat", "dog", "owl"))
    assert benchmark.classes == ("cat", "dog", "owl")


def test_nan_is_refused_with_domain_and_row_except_in_tables() -> None:
    y = torch.tensor([0, 1])
    images, table = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3)
    images[1, 0, 0, 0] = table[1, 0] = float("nan")
    with pytest.raises(InputError, match="domain 'a' train: row 1: the input contains NaN"):
        Benchmark.of([Domain.of("a", (images, y), (images, y))]).check()
    assert Benchmark.of([Domain.of("a", (table, y), (table, y))]).check().kind == "table"
    lazy = Samples.of((table, y), "domain 'a' train", transform=double)
    with pytest.raises(InputError, match="domain 'a' train: row 1: the input contains NaN"):
        lazy.x.index_select(0, torch.tensor([0, 1]))


def test_an_iterable_data_set_is_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([])

    with pytest.raises(InputError, match="Stream has no length"):
        Domain.of("a", Stream(), Stream())


def test_tables_of_pandas_and_arrays_in_any_layout_are_the_same_inputs() -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 1, 0])
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    reversed_views = (x[::-1].copy()[::-1], y[::-1].copy()[::-1])
    for inputs, labels in (
        (frame, pd.Series(y)),
        (frame.astype("Float64"), pd.Series(y, index=[9, 8, 7, 6])),
        (x.astype(">f4"), y.astype(">i8")),
        reversed_views,
    ):
        samples = Samples.of((inputs, labels))
        assert torch.equal(samples.x, torch.from_numpy(x))
        assert torch.equal(samples.y, torch.from_numpy(y))


def test_a_missing_value_of_pandas_is_a_missing_value() -> None:
    frame = pd.DataFrame({"a": pd.array([1.0, None], dtype="Float64"), "b": [2.0, 3.0]})
    assert Samples.of((frame, [0, 1])).x.isnan().tolist() == [[False, False], [True, False]]


def test_inputs_that_are_not_numbers_and_names_that_are_not_texts_are_refused() -> None:
    with pytest.raises(InputError, match="domain 'A' train: DataFrame does not become a tensor"):
        Domain.of("A", (pd.DataFrame({"a": ["x", "y"]}), [0, 1]), (np.zeros((2, 1)), [0, 1]))
    with pytest.raises(InputError, match="domain 2020: the name of a domain is a text"):
        Domain.of(2020, (np.zeros((2, 1)), [0, 1]), (np.zeros((2, 1)), [0, 1]))  # type: ignore[arg-type]
