"""The user's own data needs no code: trees of images, sites, CSV, JSON lines."""

from __future__ import annotations

from pathlib import Path

import factories
import numpy as np
import pytest
import torch
from PIL import Image

from fedspecial.data import catalogue
from fedspecial.data.partition import make_partition
from fedspecial.errors import InputError


def test_folder_names_are_domains_and_classes(tmp_path: Path, cache: Path) -> None:
    factories.tree(tmp_path, ("winter", "summer"), ("oak", "fir"), 10)
    benchmark = catalogue.load("folders", data=tmp_path, cache=cache, image_size=16)
    assert benchmark.task_names == ["summer", "winter"]
    assert benchmark.classes == ("fir", "oak")
    assert [(len(d.train), len(d.test)) for d in benchmark.domains] == [(14, 6)] * 2
    reordered = catalogue.load("folders", data=tmp_path, cache=cache, image_size=16, domains=("winter", "summer"))
    assert reordered.task_names == ["winter", "summer"]


def test_an_unknown_domain_is_refused_with_a_suggestion(tmp_path: Path, cache: Path) -> None:
    factories.tree(tmp_path, ("winter",), ("oak", "fir"), 5)
    with pytest.raises(InputError, match=r"domains=wintr: there is no such folder.*did you mean 'winter'"):
        catalogue.load("folders", data=tmp_path, cache=cache, domains=("wintr",))


def test_images_of_any_mode_and_shape_become_square_rgb(tmp_path: Path, cache: Path) -> None:
    for name in ("oak", "fir"):
        folder = tmp_path / "winter" / name
        folder.mkdir(parents=True)
        Image.new("L", (30, 10), 7).save(folder / "grey.png")
        Image.new("RGBA", (9, 40), (7, 7, 7, 100)).save(folder / "transparent.PNG")
        Image.new("CMYK", (12, 12)).save(folder / "print.jpg")
        palette = Image.new("P", (12, 12), 0)
        palette.save(folder / "palette.png", transparency=b"\x00\x80")
        (folder / "notes.txt").write_text("not an image")
        (folder / ".hidden.png").write_bytes(b"")
    domain = catalogue.load("folders", data=tmp_path, cache=cache, image_size=16).domains[0]
    assert len(domain.train) + len(domain.test) == 8
    assert domain.train.x.shape[1:] == (3, 16, 16)


def test_given_sites_are_the_clients(tmp_path: Path, cache: Path) -> None:
    for site, count in (("north", 10), ("south", 20), ("west", 10)):
        factories.tree(tmp_path / site, ("a", "b"), ("cat", "dog"), count)
    benchmark = catalogue.load("folders", data=tmp_path, cache=cache, image_size=8)
    assert benchmark.task_names == ["a", "b"]
    for domain in benchmark.domains:
        assert domain.sites is not None
        assert [len(rows) for rows in domain.sites] == [14, 28, 14]
        parts = make_partition(
            "dirichlet", domain.train.y.numpy(), 99, sites=domain.sites, rng=np.random.default_rng(0)
        )
        assert parts.num_clients == 3
    assert benchmark.input_shape == (3, 8, 8)


def test_a_capped_site_keeps_its_own_rows(tmp_path: Path, cache: Path) -> None:
    factories.tree(tmp_path / "north", ("a",), ("cat", "dog"), 10)
    for file in factories.tree(tmp_path / "south", ("a",), ("cat", "dog"), 10).rglob("*.png"):
        factories.image(file, 255)
    domain = catalogue.load("folders", data=tmp_path, cache=cache, image_size=8, cap=16).domains[0]
    assert domain.sites is not None
    assert len(domain.train) == 16
    assert sorted(np.concatenate(domain.sites).tolist()) == list(range(16))
    assert set(domain.train.x[domain.sites[1]].unique().tolist()) == {255}
    assert 255 not in domain.train.x[domain.sites[0]]


def test_mixed_depths_are_refused(tmp_path: Path, cache: Path) -> None:
    factories.tree(tmp_path, ("a",), ("cat",), 2)
    factories.image(tmp_path / "site/a/cat/1.png", 5)
    with pytest.raises(InputError, match="different depths"):
        catalogue.load("folders", data=tmp_path, cache=cache)


def test_a_folder_without_usable_data_is_refused(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(InputError, match="contains no images"):
        catalogue.load("folders", data=tmp_path, cache=cache)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match=r"neither a folder of images nor a \.csv, \.tsv or \.jsonl file"):
        catalogue.load("folders", data=tmp_path / "notes.txt", cache=cache)


def table(path: Path) -> Path:
    rows = ["hospital,outcome,age,blood,ward"]
    for n in range(60):
        blood = ["A", "B", ""][n % 3]
        rows.append(f"h{n % 2},{'ill' if n // 2 % 2 else 'well'},{40 + n if n % 5 else ''},{blood},w{n // 4 % 3}")
    path.write_text("\n".join(rows) + "\n")
    return path


def test_the_columns_of_a_csv_file_can_be_named(tmp_path: Path) -> None:
    table(tmp_path / "t.csv")
    benchmark = catalogue.load(
        "folders", data=tmp_path, domain_column="hospital", label_column="outcome", site_column="ward"
    )
    assert benchmark.kind == "table"
    assert benchmark.task_names == ["h0", "h1"]
    assert benchmark.classes == ("ill", "well")
    # age, blood=A, blood=B, and an indicator for each of the three
    assert benchmark.input_shape == (6,)
    x = benchmark.domains[0].train.x
    assert x.dtype == torch.float32
    assert torch.equal(x[:, 3] == 1, x[:, 0].isnan())
    assert torch.equal(x[:, 4] == 1, x[:, 1].isnan())
    assert set(x[:, 1][~x[:, 1].isnan()].tolist()) == {0.0, 1.0}
    assert benchmark.domains[0].sites is not None
    assert len(benchmark.domains[0].sites) == 3


def test_columns_are_standardised_with_the_first_domains_training_rows(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv")
    settings = {"data": tmp_path, "domain_column": "hospital", "label_column": "outcome"}
    before = catalogue.load("folders", **settings)  # type: ignore[arg-type]
    age = before.domains[0].train.x[:, 0]
    assert abs(float(age.nanmean())) < 1e-5
    changed = [
        line if not line.startswith("h1") else line.replace(",4", ",9") for line in path.read_text().splitlines()
    ]
    path.write_text("\n".join(changed))
    after = catalogue.load("folders", **settings)  # type: ignore[arg-type]
    assert torch.equal(before.domains[0].test.x.nan_to_num(9), after.domains[0].test.x.nan_to_num(9))


def test_json_lines_are_texts(tmp_path: Path) -> None:
    path = factories.jsonl(tmp_path / "mine.jsonl")
    benchmark = catalogue.load("folders", data=path, length=8, site_column="who")
    assert benchmark.kind == "text"
    assert benchmark.classes == ("no", "yes")
    assert benchmark.input_shape == (8,)
    assert benchmark.domains[0].sites is not None
    assert catalogue.load("folders", data=tmp_path).domains[0].sites is None


def test_labels_that_are_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    rows = [f'{{"domain": "d", "label": {n % 12}, "text": "t{n}"}}' for n in range(60)]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    assert catalogue.load("folders", data=tmp_path).classes == tuple(map(str, range(12)))
