"""What a model knows about its inputs is stored with its run, and other data is matched with it by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import factories
import numpy as np
import pytest
import torch
from PIL import Image

import fedspecial
from fedspecial.data import catalogue
from fedspecial.data.inputs import read_inputs
from fedspecial.data.loading.tokens import SEPARATOR
from fedspecial.data.schema import FILE, DataSchema
from fedspecial.errors import InputError

QUICK: dict[str, Any] = {
    "rounds": 2,
    "local_epochs": 2,
    "batch_size": 4,
    "clients": 2,
    "clients_per_round": 2,
    "partition": "iid",
    "min_per_client": 0,
    "method": "fedavg",
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def dark_and_bright(
    root: Path, dark: str = "dark", bright: str = "bright", sites: tuple[str, ...] = ("a", "b")
) -> Path:
    for domain in sites:
        for name, value in ((dark, 20), (bright, 220)):
            for number in range(10):
                factories.image(root / domain / name / f"{number}.png", value + number, side=8)
    return root


def image_run(tmp_path: Path) -> Path:
    data = dark_and_bright(tmp_path / "photos")
    out = tmp_path / "run"
    settings = {**QUICK, "model": "logistic", "image_size": 8, "client_lr": 0.1}
    fedspecial.run("folders", data=str(data), out=out, **settings)
    return out


def table_run(tmp_path: Path) -> Path:
    out = tmp_path / "run"
    rows = ["domain,label,age,blood"]
    for n in range(40):
        rows.append(f"d{n % 2},{'ill' if n // 2 % 2 else 'well'},{20 + n if n % 5 else ''},{'AB'[n % 3 % 2]}")
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    fedspecial.run("folders", data=str(tmp_path / "t.csv"), out=out, **QUICK, model="logistic")
    return out


def test_the_schema_of_a_run_names_classes_and_inputs(tmp_path: Path) -> None:
    folder = image_run(tmp_path)
    schema = DataSchema.read(folder)
    assert schema.kind == "image"
    assert schema.classes == ("bright", "dark")
    assert schema.input_shape == (3, 8, 8)
    assert schema.dtype == "uint8"
    assert schema.mean is not None
    assert schema.mean[0] == 0.485
    assert json.loads((folder / FILE).read_text())["format"] == 1
    assert "bright, dark" in (folder / "README.md").read_text()


def test_classes_are_matched_by_name_and_not_by_number(tmp_path: Path) -> None:
    """The model calls bright images 0. In the other folder only dark ones exist besides, and they would be number 0."""
    folder = image_run(tmp_path)
    assert fedspecial.evaluate(folder) == {"a": 1.0, "b": 1.0}
    data = catalogue.load("folders", data=tmp_path / "photos", image_size=8)
    swapped = fedspecial.Benchmark(
        "other",
        tuple(fedspecial.Domain.of(d.name, (d.train.x, 1 - d.train.y), (d.test.x, 1 - d.test.y)) for d in data.domains),
        ("dark", "bright"),
        mean=data.mean,
        std=data.std,
    )
    assert fedspecial.evaluate(folder, swapped) == {"a": 1.0, "b": 1.0}


def test_an_unknown_class_is_refused_by_name(tmp_path: Path) -> None:
    """Renamed so that the alphabetical order changes: without names, labels would silently be swapped."""
    folder = image_run(tmp_path)
    for domain in ("a", "b"):
        (tmp_path / "photos" / domain / "bright").rename(tmp_path / "photos" / domain / "zbright")
    with pytest.raises(InputError, match=r"'zbright' is not a class of .*\(bright, dark\) \(did you mean 'bright'"):
        fedspecial.evaluate(folder)


def test_other_images_are_read_at_the_size_of_the_model(tmp_path: Path) -> None:
    folder = image_run(tmp_path)
    other = dark_and_bright(tmp_path / "other", sites=("c",))
    assert fedspecial.evaluate(folder, "folders", data=str(other)) == {"c": 1.0}
    with pytest.raises(InputError, match=r"inputs are 3×16×16 of uint8, but those of .* are 3×8×8"):
        fedspecial.evaluate(folder, image_size=16)


def test_new_image_files_become_the_inputs_of_training(tmp_path: Path) -> None:
    schema = DataSchema.read(image_run(tmp_path))
    photos = tmp_path / "photos"
    benchmark = catalogue.load("folders", data=photos, image_size=8)
    domain = benchmark.domains[0]
    trained = benchmark.inputs(torch.cat([domain.train.x, domain.test.x]))
    batches = list(read_inputs(schema, [photos / "a"]))
    assert [Path(name).name for name in batches[0].names][:2] == ["0.png", "1.png"]
    assert sorted(batches[0].x.flatten(1).tolist()) == sorted(trained.flatten(1).tolist())
    (tmp_path / "broken.png").write_bytes(b"no")
    with pytest.raises(InputError, match=r"broken\.png: not a readable image"):
        list(read_inputs(schema, [tmp_path / "broken.png"]))


def test_rows_of_another_domain_are_standardised_as_in_training(tmp_path: Path) -> None:
    """The second domain alone would have other means, another order of columns and fewer categories."""
    folder = table_run(tmp_path)
    whole = fedspecial.evaluate(folder)
    header, *rows = (tmp_path / "t.csv").read_text().splitlines()
    turned = [",".join(reversed(line.split(","))) for line in [header, *(row for row in rows if row[:2] == "d1")]]
    other = tmp_path / "other.csv"
    other.write_text("\n".join(turned))
    assert fedspecial.evaluate(folder, data=str(other)) == {"d1": whole["d1"]}


def test_new_rows_become_the_inputs_of_training(tmp_path: Path) -> None:
    folder = table_run(tmp_path)
    schema = DataSchema.read(folder)
    assert schema.table is not None
    assert [column.name for column in schema.table.columns] == ["age", "blood"]
    assert schema.table.columns[1].categories == ("A", "B")
    new = tmp_path / "new.csv"
    new.write_text("blood,name,age\nB,x,30\nA,y,\n")
    (batch,) = read_inputs(schema, [new])
    mean, std = schema.table.mean[0], schema.table.std[0]
    assert schema.table.fill is not None
    filled = np.float32(schema.table.fill[0])
    # age, blood=A, blood=B, whether the age is missing
    expected = [[(30 - mean) / std, 0, 1, 0], [float(filled), 1, 0, 1]]
    assert batch.x.tolist() == torch.tensor(expected, dtype=torch.float32).tolist()
    assert batch.names == (f"{new}: row 2", f"{new}: row 3")


@pytest.mark.parametrize(
    ("content", "message"),
    [("age\n3\n", "no column 'blood'"), ("age,blood\n3,C\n", "'C' is not one of A, B"), ("age,blood\nx,A\n", "'x' is")],
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, content: str, message: str) -> None:
    schema = DataSchema.read(table_run(tmp_path))
    (tmp_path / "new.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        list(read_inputs(schema, [tmp_path / "new.csv"]))


def test_new_texts_become_the_tokens_of_training(tmp_path: Path) -> None:
    path = factories.jsonl(tmp_path / "mine.jsonl")
    benchmark = catalogue.load("folders", data=path, length=8, vocab=50)
    (batch,) = read_inputs(benchmark.schema, [path])
    stored = torch.cat([part.x for domain in benchmark.domains for part in (domain.train, domain.test)])
    assert sorted(batch.x.tolist()) == sorted(stored.tolist())
    again = catalogue.load("folders", data=path, schema=benchmark.schema)
    assert again.input_shape == (8,)


def test_new_pairs_of_texts_become_the_tokens_of_training(tmp_path: Path) -> None:
    rows = [{"domain": "a", "label": n % 2, "text": [f"who is {n}", f"nobody but {n}"]} for n in range(8)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    benchmark = catalogue.load("folders", data=path, length=8, vocab=50)
    (batch,) = read_inputs(benchmark.schema, [path])
    stored = torch.cat([part.x for domain in benchmark.domains for part in (domain.train, domain.test)])
    assert sorted(batch.x.tolist()) == sorted(stored.tolist())
    assert bool((stored == SEPARATOR).any(1).all())


def test_a_schema_survives_writing_and_reading(tmp_path: Path) -> None:
    factories.heart(tmp_path)
    for name in ("heart", "digits-shift"):
        schema = catalogue.load(name, data=tmp_path).schema
        schema.write(tmp_path)
        assert DataSchema.read(tmp_path) == schema


def test_a_run_without_schema_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = image_run(tmp_path)
    (folder / FILE).write_text("{")
    with pytest.raises(InputError, match=r"schema\.json: it was cut off"):
        fedspecial.evaluate(folder)
    (folder / FILE).unlink()
    with pytest.raises(InputError, match=r"no schema\.json"):
        fedspecial.evaluate(folder)


def test_runs_and_settings_files_work_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    dark_and_bright(home / "photos")
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    settings = {**QUICK, "model": "logistic", "image_size": 8}
    first = fedspecial.run("folders", data="photos", out="run", **settings)
    (home / "preset.yaml").write_text("benchmark: folders\ndata: photos\n")
    shutil.copytree(home / "run", elsewhere / "moved")
    script = (
        "import fedspecial, sys\n"
        "print(sorted(fedspecial.evaluate('moved')))\n"
        "again = fedspecial.run(config='moved/config.yaml', out='again')\n"
        f"settings = {settings!r}\n"
        "fedspecial.run(config='../home/preset.yaml', out='third', **settings)\n"
        "print(again.model_sha256)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=elsewhere, capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert done.stdout.split("\n")[:2] == ["['a', 'b']", first.model_sha256], done.stderr


def test_greyscale_files_are_read_for_a_model_of_colour_images(tmp_path: Path) -> None:
    schema = DataSchema.read(image_run(tmp_path))
    Image.new("L", (5, 9), 100).save(tmp_path / "grey.png")
    (batch,) = read_inputs(schema, [tmp_path / "grey.png"])
    assert batch.x.shape == (1, 3, 8, 8)
