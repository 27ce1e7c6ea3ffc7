"""Targets that are no classes, from CSV tables and JSON lines: numbers stay the numbers that are in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedspecial import InputError
from fedspecial.data import catalogue
from toy_problems import learn_settings

SMALL: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "clients": 2, "clients_per_round": 2}


def table(path: Path, rows: int = 40) -> Path:
    """Domains A and B; the target `dose` is ten times the row's number, `ill` and `old` are 0 or 1."""
    lines = ["domain,age,dose,ill,old"]
    lines += [f"{'AB'[row % 2]},{row % 7},{10 * row},{row % 3 % 2},{row % 2}" for row in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def targets(path: Path, kind: Any, **options: Any) -> torch.Tensor:
    data = catalogue.load("folders", data=path, seed=1, targets=kind, **options)
    assert data.targets == kind
    return torch.cat([part.y for domain in data.domains for part in (domain.train, domain.test)])


def test_numbers_are_not_turned_into_classes(tmp_path: Path) -> None:
    """Whole numbers above all: as classes, 0, 10, 20 … would become 0, 1, 2 …"""
    found = targets(table(tmp_path / "a.csv"), "values", label_column="dose")
    assert found.dtype == torch.float32
    assert sorted(found.tolist()) == [10.0 * row for row in range(40)]


def test_several_columns_are_several_outputs(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv")
    assert targets(path, "values", label_column="dose,old").shape == (40, 2)
    data = catalogue.load("folders", data=path, seed=1, targets="indicators", label_column="ill,old")
    assert data.classes == ("ill", "old")
    assert data.input_shape == (2,), "the columns of targets are no features: age and dose remain"


def test_json_lines_have_numbers_too(tmp_path: Path) -> None:
    rows = [{"domain": "AB"[row % 2], "label": row / 4, "text": f"word{row}"} for row in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert sorted(targets(tmp_path / "a.jsonl", "values").tolist()) == [row / 4 for row in range(40)]


def test_a_regression_on_a_table_runs_with_sites_and_a_cap(tmp_path: Path) -> None:
    settings = {
        "benchmark": "folders",
        "data": str(table(tmp_path / "a.csv")),
        "objective": "regression",
        "method": "special",
    }
    capped = learn_settings(tmp_path / "cap", **settings, **SMALL, label_column="dose", cap=10)
    assert capped.metric["name"] == "r2"
    lines = (tmp_path / "a.csv").read_text().splitlines()
    sites = [f"{line},{'site' if number == 0 else number % 2}" for number, line in enumerate(lines)]
    (tmp_path / "a.csv").write_text("\n".join(sites) + "\n")
    assert (
        learn_settings(tmp_path / "sites", **settings, **SMALL, label_column="dose", site_column="site").acc is not None
    )


@pytest.mark.parametrize(
    ("kind", "column", "message"),
    [
        ("values", "age,dose", r"a.csv: row 5: column 'dose': 'much' is not a number"),
        (
            "classes",
            "ill,old",
            r"label_column=ill,old: several columns of targets need objective=regression or multilabel",
        ),
        ("indicators", "dosis", r"a.csv: .*'dosis'"),
        ("masks", "dose", "objective=segmentation: tables and texts have no masks"),
    ],
)
def test_wrong_targets_are_named(kind: Any, column: str, message: str, tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], lines[4].replace(",30,", ",much,"), *lines[5:]]) + "\n")
    with pytest.raises(InputError, match=message):
        catalogue.load("folders", data=path, seed=1, targets=kind, label_column=column)
