"""The theory's sweeps on problems with known constants, run once and stored as JSON and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedspecial.core.files import write_atomic
from fedspecial.theory.plots import plot_study
from fedspecial.theory.simulation.rate_studies import rate_study

THEORY = "theory"
"""The folder of the sweeps in a directory of studies and in one of records."""


def run_rate(sweep: str, folder: Path) -> bool:
    """Run a sweep unless its results exist; returns whether it was run. The JSON file is written last."""
    target = folder / f"theory-{sweep}.json"
    if target.exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    study = rate_study(sweep)
    for ending in (".png", ".svg"):
        plot_study(study, target.with_suffix(ending))
    write_atomic(target, (json.dumps(study.to_dict(), indent=2) + "\n").encode())
    return True


def record_rates(sweeps: tuple[str, ...], folder: Path, records: Path) -> None:
    """Copy the results of finished sweeps from a directory of studies to one of records."""
    for sweep, content in read_rates(sweeps, folder / THEORY).items():
        path = records / THEORY / f"theory-{sweep}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())


def read_rates(sweeps: tuple[str, ...], folder: Path) -> dict[str, dict[str, Any]]:
    paths = {sweep: folder / f"theory-{sweep}.json" for sweep in sweeps}
    return {sweep: json.loads(path.read_text(encoding="utf-8")) for sweep, path in paths.items() if path.exists()}
