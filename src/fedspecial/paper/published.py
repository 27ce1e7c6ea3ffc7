"""The numbers published in the paper, read from published.yaml, in the units of the tables."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

from fedspecial.report.comparison import MeanStd


@cache
def _content() -> dict[str, Any]:
    text = (resources.files("fedspecial.paper") / "published.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def published_value(study: str, benchmark: str, x: float | None, row: str, metric: str) -> MeanStd | None:
    """One published number, or None if the paper has none."""
    at = _content()["tables"].get(study, {}).get(benchmark, {}).get("-" if x is None else x, {})
    value = at.get(row, {}).get(metric)
    if value is None:
        return None
    return MeanStd(float(value[0]), float(value[1])) if isinstance(value, list) else MeanStd(float(value), None)


def task_names(benchmark: str) -> list[str]:
    """The domains of a benchmark in the paper's order."""
    return list(_content()["tasks"].get(benchmark, []))
