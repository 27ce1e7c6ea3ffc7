"""fedspecial predict: the classes of new files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import fedspecial
from processes import Outcome
from toy_problems import learn_settings

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.usefixtures("rendered")]

SMALL = {"domains": "paper,neon", "cap": 80, "model": "mlp", "width": 8, "rounds": 1, "local_epochs": 1, "clients": 2,
         "clients_per_round": 2, "min_per_client": 2, "eval_every": 0}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    learn_settings(tmp_path / "run", benchmark="digits-shift", method="fedavg", **SMALL)
    Image.new("RGB", (40, 40), "white").save(tmp_path / "a.png")
    Image.new("RGB", (40, 40), "black").save(tmp_path / "b.png")
    return tmp_path / "run"


def test_predict_prints_classes_and_probabilities(run: Path, call: Callable[..., Outcome]) -> None:
    shown = call("predict", "run", "a.png", "b.png")
    assert shown.code == 0, shown.stderr
    assert "a.png" in shown.stdout
    assert "probability" in shown.stdout
    done = call("predict", "run", "a.png", "b.png", "--format", "csv", "--out", "p.csv")
    assert done.code == 0, done.stderr
    rows = list(csv.DictReader((run.parent / "p.csv").read_text().splitlines()))
    classes = fedspecial.load(run).classes
    assert [row["input"] for row in rows] == ["a.png", "b.png"]
    assert list(rows[0]) == ["input", "class", *classes]
    assert sum(float(rows[0][name]) for name in classes) == pytest.approx(1, abs=1e-4)
    assert rows[0]["class"] == max(classes, key=lambda name: float(rows[0][name]))
    as_json = json.loads(call("predict", "run", "a.png", "--format", "json").stdout)
    assert as_json[0]["class"] == rows[0]["class"]
    for arguments, words in (
        (("run", "c.png"), "c.png: there is no such file"),
        (("nothing", "a.png"), "not a run directory"),
        (("run", "a.png", "--out", "p.txt"), "choose --format csv or --format json"),
    ):
        refused = call("predict", *arguments)
        assert (refused.code, refused.stderr.count("\n")) == (2, 1)
        assert words in refused.stderr
