"""The tables of docs/science/detection.md are those of the committed runs."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "results" / "detection" / "runs.jsonl"


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "detection_study.py"))


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]


def test_the_tables_of_the_page_are_made_from_the_committed_runs(
    study: dict[str, Any], lines: list[dict[str, Any]]
) -> None:
    text = (ROOT / "docs" / "science" / "detection.md").read_text(encoding="utf-8")
    assert study["page"](text, lines) == text, "python tools/detection_study.py table results/detection"


def test_no_run_is_counted_twice(study: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    assert len({study["_key"](line) for line in lines}) == len(lines)


def test_the_goal_is_all_sharp_borders_within_three_rounds_and_at_most_one_false_alarm_in_100_rounds(
    study: dict[str, Any],
) -> None:
    def run(delays: list[int | None], false: float, data: str = "heart") -> dict[str, Any]:
        found = {"delays": delays, "false_alarms_per_100_rounds": false}
        return {"data": data, "stream": "sharp", "variant": "loss", "detection": found}

    def verdict(*runs: dict[str, Any]) -> str:
        return str(study["goal"](list(runs)).splitlines()[-1])

    assert verdict(run([1, 3], 1.5), run([2], 0.5)) == "| heart | 1/i | 3 of 3 | 1.00 | reached |"
    assert verdict(run([1, 4], 0.0)) == "| heart | 1/i | 1 of 2 | 0.00 | not reached |"
    assert verdict(run([1, None], 0.0)) == "| heart | 1/i | 1 of 2 | 0.00 | not reached |"
    assert verdict(run([1, 3], 1.1)) == "| heart | 1/i | 2 of 2 | 1.10 | not reached |"
    assert "digits-shift" not in study["goal"]([run([1], 0.0, "digits-shift")]), "its losses fixed the threshold"
