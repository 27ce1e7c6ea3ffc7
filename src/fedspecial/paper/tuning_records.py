"""What the searches found: one file per scale and benchmark in results/tuning, from which studies take their settings.

The rule: of the points that were run with all seeds, the one with the highest mean ACC on held-out training samples. Of
equal points, the preset's own values win, otherwise the first in the order of the grid, which has the smaller values
first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedspecial.config import Settings
from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.paper.grid import Tuning
from fedspecial.paper.scales import SCALES
from fedspecial.paper.tuning import Search, default_settings, grids
from fedspecial.report.result import Result
from fedspecial.runs.jobs import Job

FOLDER = "tuning"
RULE = (
    "highest mean ACC on held-out training samples, of the points that were run with all seeds; of equal points the "
    "preset's values, otherwise the first in the order of the grid"
)


@dataclass(frozen=True)
class TriedPoint:
    """One point of a search: its settings, and ACC and BWT on held-out samples for each seed that it was run with."""

    settings: Settings
    acc: tuple[float, ...]
    bwt: tuple[float | None, ...]


def choose(tried: Sequence[TriedPoint], default: Settings) -> Settings:
    """The settings of the best point, by the rule of this file."""
    seeds = max(len(point.acc) for point in tried)
    compared = [point for point in tried if len(point.acc) == seeds]
    best = max(fmean(point.acc) for point in compared)
    equal = [point.settings for point in compared if fmean(point.acc) == best]
    at_default = (settings for settings in equal if all(default.get(key) == value for key, value in settings.items()))
    return next(at_default, equal[0])


Read = Callable[[Path], Result | None]


def accuracies(search: Search, runs: Sequence[Job], read: Read) -> list[tuple[float, float | None]] | None:
    """ACC and BWT of runs of a search, or None if one is missing."""
    results = [read(job.folder) for job in runs]
    found = [result for result in results if result is not None]
    if len(found) < len(results):
        return None
    if any(result.acc is None for result in found):
        raise InputError(f"{search.benchmark} {search.method}: a run has no ACC, so no point can be chosen")
    return [(result.acc, result.bwt) for result in found if result.acc is not None]


def further_runs(search: Search, read: Read) -> list[Job] | None:
    """The runs of the finalists with the further seeds, or None if a run with the first seed is missing."""
    first = accuracies(search, search.first_runs, read)
    return None if first is None else search.further_runs(search.finalists([acc for acc, _ in first]))


def finished_search(search: Search, read: Read) -> list[TriedPoint] | None:
    """All points of a search with their results, or None if a run is missing."""
    first = accuracies(search, search.first_runs, read)
    if first is None:
        return None
    finalists = search.finalists([acc for acc, _ in first])
    tried = []
    for at, (point, runs) in enumerate(zip(search.points, search.jobs, strict=True)):
        found = accuracies(search, runs if at in finalists else runs[:1], read)
        if found is None:
            return None
        tried.append(TriedPoint(point, tuple(acc for acc, _ in found), tuple(bwt for _, bwt in found)))
    return tried


def path_of(results: Path, scale: str, benchmark: str) -> Path:
    return results / FOLDER / scale / f"{benchmark}.json"


def write_record(results: Path, search: Search, tried: Sequence[TriedPoint], versions: Mapping[str, str]) -> Settings:
    """Add a finished search to the record of its benchmark; returns the chosen settings."""
    path = path_of(results, search.scale, search.benchmark)
    record = _read(path) if path.exists() else {}
    chosen = choose(tried, default_settings(search.method, search.benchmark, search.scale))
    searched = {
        "chosen": chosen,
        "holdout": grids().holdout,
        "seeds": list(grids().seeds),
        "versions": dict(versions),
        "points": [{"settings": p.settings, "acc": list(p.acc), "bwt": list(p.bwt)} for p in tried],
    }
    content = {
        "scale": search.scale,
        "benchmark": search.benchmark,
        "rule": RULE,
        "settings": dict(SCALES[search.scale][search.benchmark].settings),
        "methods": {**record.get("methods", {}), search.method: searched},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, _text(content).encode())
    return chosen


def recorded_settings(results: Path, search: Search) -> Settings | None:
    """The settings that a search chose according to its record, or None if it has none for the current grid."""
    path = path_of(results, search.scale, search.benchmark)
    found = _read(path)["methods"].get(search.method) if path.exists() else None
    if found is None or found["seeds"] != list(grids().seeds) or found["holdout"] != grids().holdout:
        return None
    same = [point["settings"] for point in found["points"]] == list(search.points)
    return dict(found["chosen"]) if same else None


def _text(content: Mapping[str, Any]) -> str:
    """JSON with one line per point of a search, so that a change of a record can be read."""
    searched = []
    for method, found in content["methods"].items():
        lines = [f"   {json.dumps(key)}: {json.dumps(value)},\n" for key, value in found.items() if key != "points"]
        tried = ",\n".join(f"    {json.dumps(point)}" for point in found["points"])
        searched.append(f'  {json.dumps(method)}: {{\n{"".join(lines)}   "points": [\n{tried}\n   ]\n  }}')
    head = [f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items() if key != "methods"]
    return "{\n" + "".join(head) + ' "methods": {\n' + ",\n".join(searched) + "\n }\n}\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        scale, benchmark = content["scale"], content["benchmark"]
        known = benchmark in SCALES.get(scale, {})
        current = json.loads(json.dumps(dict(SCALES[scale][benchmark].settings))) if known else None
        recorded = content["settings"]
        chosen = {method: dict(found["chosen"]) for method, found in content["methods"].items()}
        if not all({"seeds", "holdout", "points"} <= found.keys() for found in content["methods"].values()):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: damaged or edited; delete it and run fedspecial study tune-all again") from None
    if recorded != current or not chosen:
        raise InputError(
            f"{path}: the search was run with other settings of the benchmark than the studies have now; delete it and "
            f"run fedspecial study tune-all {path.stem} again"
        )
    return content


def read_tuning(results: Path) -> Tuning:
    """The chosen settings of all records in a directory of results; empty if there are none."""
    contents = [_read(path) for path in sorted((results / FOLDER).glob("*/*.json"))]
    found = {
        (content["scale"], content["benchmark"]): {
            method: dict(entry["chosen"]) for method, entry in content["methods"].items()
        }
        for content in contents
    }
    shared = {
        (scale, benchmark): found[scale, source]
        for benchmark, source in grids().settings_from.items()
        for scale in SCALES
        if (scale, source) in found
    }
    return {**shared, **found}
