"""The numbers printed in the paper, as they stand in published.yaml; in the unit in which they are shown."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

from fedspecial.report.comparison import Spread


@cache
def _content() -> dict[str, Any]:
    text = (resources.files("fedspecial.paper") / "published.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def printed(study: str, benchmark: str, x: float | None, row: str, metric: str) -> Spread | None:
    """One printed number, or None where the paper has none."""
    at = _content()["tables"].get(study, {}).get(benchmark, {}).get("-" if x is None else x, {})
    value = at.get(row, {}).get(metric)
    if value is None:
        return None
    return Spread(float(value[0]), float(value[1])) if isinstance(value, list) else Spread(float(value), None)


def task_names(benchmark: str) -> list[str]:
    """The paper's order of domains."""
    return list(_content()["tasks"].get(benchmark, []))
