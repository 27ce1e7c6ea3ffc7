"""Commands on a regression: R² has no lower limit, so nothing of it is a percentage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import Outcome

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
Call = Callable[..., Outcome]
SETTINGS = (
    *("benchmark=folders", "objective=regression", "label_column=dose", "partition=iid", "model=mlp", "rounds=1"),
    *("clients=2", "clients_per_round=2", "min_per_client=1", "local_epochs=1"),
)


def table(path: Path) -> Path:
    """Two domains; the target follows from the only feature."""
    lines = ["domain,age,dose", *(f"{'AB'[row % 2]},{row % 7},{row % 7 / 2}" for row in range(60))]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_main_metric_of_a_regression_is_not_shown_in_per_cent(call: Call, tmp_path: Path) -> None:
    data = table(tmp_path / "doses.csv")
    assert call("run", *SETTINGS, f"data={data}", "method=fedavg", "out=runs/a").code == 0
    result = json.loads((tmp_path / "runs" / "a" / "result.json").read_text())
    row = dict(zip(result["tasks"], result["matrix"][-1], strict=True))
    assert call("evaluate", "runs/a").stdout == "".join(f"{name}: {value:.3f}\n" for name, value in row.items())
    compared = call("compare", *SETTINGS, f"data={data}", "--methods", "fedavg", "--seeds", "25", "--jobs", "1")
    assert "folders, seed 25: R²" in compared.stdout
    assert "per cent" not in compared.stdout
