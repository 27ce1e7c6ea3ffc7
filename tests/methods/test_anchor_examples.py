"""The rules for λ that were tried and rejected (`examples/anchors/`) still run: their numbers can be reproduced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fedspecial.core.statistics_bank import PREFIX
from fedspecial.methods import find
from fedspecial.methods.base import Method
from toy_problems import learn, rotated_blobs

FOLDER = Path(__file__).parents[2] / "examples" / "anchors"
MODEL = "input_norm.py:InputNorm"
RULES: list[tuple[str, dict[str, Any]]] = [
    ("head_bank.py:HeadBank", {"temperature": 0.2}),
    ("lagged_secant.py:LaggedSecant", {"scale": 0.3}),
    ("laplace_scalar.py:LaplaceScalar", {"c": 10.0}),
    ("merge_at_end.py:MergeAtEnd", {"rule": "fisher"}),
    ("merge_at_end.py:MergeAtEnd", {"rule": "keep"}),
    ("merge_at_end.py:MergeAtEnd", {"rule": "mean"}),
    ("two_group_secant.py:TwoGroupSecant", {"scale": 0.3}),
]


def test_every_file_is_tested() -> None:
    tested = [*(name for name, _ in RULES), MODEL]
    assert {path.name for path in FOLDER.glob("*.py")} == {name.partition(":")[0] for name in tested}


def test_the_model_with_normalised_inputs_keeps_their_statistics_in_a_bank(tmp_path: Path) -> None:
    learn(tmp_path / "run", "special-plus", rotated_blobs(tasks=2), model=f"{FOLDER}/{MODEL}", rounds=1)
    assert f"{PREFIX}1/norm.running_mean" in load_file(tmp_path / "run" / "model.safetensors")


@pytest.mark.parametrize(("name", "settings"), RULES)
def test_a_rejected_rule_runs_and_says_what_it_needs(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    method = find(f"{FOLDER}/{name}")
    result = learn(tmp_path / "run", f"{FOLDER}/{name}", rounds=4, **settings)
    assert result.acc > 0.4
    assert method.needs_only_sum == (method.receive is Method.receive)
    if result.certificates is not None:
        assert {task["status"] for task in result.certificates} == {"not anchored", "holds"}
    text = (FOLDER / name.partition(":")[0]).read_text(encoding="utf-8")
    assert "Certificate:" in text
    assert "←" in text
