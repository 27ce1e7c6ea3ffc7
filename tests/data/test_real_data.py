"""With FEDSPECIAL_DATA set: the sizes of the real data."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedspecial
from fedspecial.data import catalogue
from fedspecial.data.absent_classes import absent_classes
from fedspecial.data.benchmarks.heart import read_hospital
from fedspecial.data.check import check
from fedspecial.data.impute import impute
from fedspecial.data.loading.bad_rows import BadRows
from fedspecial.data.partition import make_partition

DIGITS = ("usps", "svhn", "femnist", "mnist")


def sizes(name: str, real: Path, cache: Path, **settings: object) -> list[tuple[int, int]]:
    benchmark = catalogue.load(name, data=real, cache=cache, **settings)  # type: ignore[arg-type]
    return [(len(domain.train), len(domain.test)) for domain in benchmark.domains]


def test_digit10_has_the_published_sizes(real: Path, real_cache: Path) -> None:
    found = sizes("digit10", real, real_cache, domains=DIGITS)
    assert found == [(7291, 2007), (10000, 4000), (4537, 1460), (60000, 10000)]
    benchmark = catalogue.load("digit10", data=real, cache=real_cache, domains=DIGITS)
    # A digit 1 is a thin stroke in every domain: it has the least ink of all ten.
    for domain in (benchmark.domains[0], benchmark.domains[3]):
        ink = [domain.train.x[domain.train.y == digit].float().mean() for digit in range(10)]
        assert int(torch.stack(ink).argmin()) == 1


def test_pacs_has_the_published_sizes(real: Path, real_cache: Path) -> None:
    found = sizes("pacs", real, real_cache, image_size=64)
    assert [train + test for train, test in found] == [3929, 2344, 1670, 2048]


def test_cifar_has_the_expected_sizes(real: Path, real_cache: Path) -> None:
    benchmark = catalogue.load("cifar100", data=real)
    assert [(len(d.train), len(d.test)) for d in benchmark.domains] == [(1000, 200)] * 5
    assert benchmark.classes[:2] == ("apple", "aquarium_fish")


def test_texts_have_the_expected_sizes(real: Path, real_cache: Path) -> None:
    domains = ("sst2", "mrpc", "qnli")
    assert sizes("glue", real, real_cache, domains=domains) == [(67349, 872), (4076, 1725), (3824, 1639)]
    notices: list[str] = []
    found = sizes("fdu-mtl", real, real_cache, on_bad="skip", notice=notices.append)
    assert found == [(1600, 400), (1598, 400), (1599, 400), (1600, 400)]
    assert len(notices) == 1


def test_all_sixteen_review_domains_share_their_labels(real: Path) -> None:
    every = catalogue.entry("fdu-mtl").all_domains
    benchmark = catalogue.load("fdu-mtl", data=real, domains=every, on_bad="skip", length=16)
    assert len(benchmark.domains) == 16


def test_heart_has_the_published_sizes_and_can_be_imputed(real: Path, real_cache: Path) -> None:
    found = sizes("heart", real, real_cache)
    assert [train + test for train, test in found] == [303, 294, 123, 200]
    benchmark = catalogue.load("heart", data=real)
    partitions = [
        make_partition("dirichlet", d.train.y.numpy(), 4, alpha=1, min_per_client=2, rng=np.random.default_rng(25))
        for d in benchmark.domains
    ]
    for domain in impute(benchmark, partitions).domains:
        assert not domain.train.x.isnan().any()
        assert not domain.test.x.isnan().any()
        assert domain.train.x.abs().max() < 10


def test_gas_drift_has_the_published_sizes_and_three_periods_without_toluene(real: Path, real_cache: Path) -> None:
    found = sizes("gas-drift", real, real_cache)
    assert [train + test for train, test in found] == [445, 1244, 1586, 161, 197, 2300, 294, 470]
    benchmark = catalogue.load("gas-drift", data=real, cache=real_cache)
    lacking = {d.name: set(absent_classes(benchmark, d)) for d in benchmark.domains if absent_classes(benchmark, d)}
    assert lacking == {period: {"toluene"} for period in ("period3", "period4", "period5")}
    first = benchmark.domains[0].train.x
    assert first.mean(0).abs().max() < 0.1
    # One measurement of period 2 is thousands of deviations away.
    assert max(float(d.train.x.abs().max()) for d in benchmark.domains) == 10


def test_spoken_digits_have_the_published_sizes(real: Path, real_cache: Path) -> None:
    assert sizes("spoken-digits", real, real_cache) == [(450, 50)] * 6
    benchmark = catalogue.load("spoken-digits", data=real, cache=real_cache)
    for domain in benchmark.domains:
        assert torch.bincount(domain.test.y).tolist() == [5] * 10
        # Speech is louder at low frequencies, which are at the bottom.
        assert domain.train.x[:, 0, 16:].float().mean() > domain.train.x[:, 0, :16].float().mean()


def test_two_publications_of_heart_agree(real: Path) -> None:
    """The hospitals' files and a table that others made of them have the same labels and ages, patient by patient."""
    with (real / "HeartDisease/all_hospitals.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        x, y = read_hospital(real / f"HeartDisease/processed.{name}.data", name, BadRows())
        theirs = [row for row in rows if row["hospital"] == name]
        assert y.tolist() == [int(row["label"]) for row in theirs]
        assert np.allclose(x[:, 0] * 9 + 54, [float(row["age"]) for row in theirs], atol=1e-3)


def test_missing_images_of_dn4il_are_counted(real: Path) -> None:
    found = list(check("dn4il", data=real, domains=("clipart",)))
    assert {finding.level for finding in found} == {"bad"}
    assert "and 12,216 more files are missing" in found[-1].line


def test_the_checksums_of_mnist_are_the_published_ones(real: Path, real_cache: Path) -> None:
    found = list(check("digit10", data=real, domains=("mnist",), cache=real_cache))
    assert [finding.level for finding in found] == ["ok"] * 5


@pytest.mark.parametrize("name", ["vlcs", "dn4il"])
def test_missing_benchmarks_are_reported_with_their_source(real: Path, name: str) -> None:
    if any((real / folder).exists() for folder in ("VLCS", "DomainNet")):
        pytest.skip("the data exists")
    with pytest.raises(Exception, match="get it from"):
        catalogue.load(name, data=real)


@pytest.mark.slow
def test_reviews_in_a_folder_of_ones_own_are_learned_with_the_settings_of_the_preset(
    real: Path, tmp_path: Path
) -> None:
    """As the tutorial says: JSON lines, and no setting but the file. SGD with the rate for images stays at 50 %."""
    with (tmp_path / "reviews.jsonl").open("w") as file:
        for domain in ("books", "dvd", "electronics", "kitchen_housewares"):
            for part in ("train", "test"):
                text = (real / "FDU-MTL" / f"{domain}.task.{part}").read_text(errors="replace")
                for label, review in (line.split("\t", 1) for line in text.splitlines() if "\t" in line):
                    file.write(json.dumps({"domain": domain, "label": label, "text": review}) + "\n")
    result = fedspecial.run("folders", data=str(tmp_path / "reviews.jsonl"), out=tmp_path / "run")
    assert result.acc is not None
    assert result.acc > 0.73  # 0.753 with seed 25, four clients
    assert result.warnings == []
