"""How the sizes of scale cpu were checked: one FedAvg run per benchmark on held-out data, made by tools/docs/sizes.py.

The record has the accuracy on each domain right after it was learned, what was forgotten, and the processor time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedspecial.config import Settings, merge_settings
from fedspecial.paper.scales import SCALES
from fedspecial.runs.jobs import identity

HELD_OUT: Mapping[str, Any] = {"method": "fedavg", "holdout": 0.2, "seed": 5}
"""The seed is one of those of the searches, which no study reports."""


def size_settings(benchmark: str) -> Settings:
    """All settings of the run that checks a benchmark's size."""
    return identity(merge_settings({**SCALES["cpu"][benchmark].settings, **HELD_OUT}))


def read_sizes(path: Path) -> dict[str, Any]:
    """The record; empty if there is none."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def sizes_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The record as a table in Markdown."""
    lines = [
        "| benchmark | accuracy right after learning each domain (most frequent class) | ACC | BWT | processor time |",
        "|---|---|---:|---:|---:|",
    ]
    for benchmark, entry in found.items():
        learned = (
            f"{name} {100 * row[at]:.1f}" + ("" if majority is None else f" ({100 * majority:.1f})")
            for at, (name, row, majority) in enumerate(
                zip(entry["domains"], entry["matrix"], entry["majority"], strict=True)
            )
        )
        numbers = (f"{100 * entry[key]:.1f}".replace("-", "−") for key in ("acc", "bwt"))
        cells = (SCALES["cpu"][benchmark].label, ", ".join(learned), *numbers, f"{entry['processor_seconds']:.0f} s")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
