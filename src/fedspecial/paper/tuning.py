"""The same search for every method: grids from tuning.yaml, and their runs on held-out training data.

`points` turns the grid of a method into settings, `searches` into runs at the scale of a study. What a search found is
kept in a record (`tuning_records`), from which the studies take their settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from fedspecial import methods
from fedspecial.config import Settings, merge_settings, resolve
from fedspecial.data import catalogue
from fedspecial.errors import InputError, did_you_mean
from fedspecial.paper.grid import run_folder, seconds_of
from fedspecial.paper.planning import why_absent
from fedspecial.paper.scales import SCALES
from fedspecial.runs.jobs import Job


@dataclass(frozen=True)
class Axis:
    """Settings that are varied together: one tuple of values, or of factors of the preset's values, per point."""

    settings: tuple[str, ...]
    choices: tuple[tuple[float, ...], ...]
    relative: bool


@dataclass(frozen=True)
class Grids:
    """The content of tuning.yaml."""

    holdout: float
    seeds: tuple[int, ...]
    points: int
    finalists: int
    methods: Mapping[str, tuple[Axis, ...]]
    not_tuned: tuple[str, ...]
    settings_from: Mapping[str, str]


@cache
def grids() -> Grids:
    text = (resources.files("fedspecial.paper") / "tuning.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    found = {name: tuple(map(_axis, axes)) for name, axes in content["methods"].items()}
    return Grids(
        holdout=content["holdout"],
        seeds=tuple(content["seeds"]),
        points=content["points"],
        finalists=content["finalists"],
        methods=found,
        not_tuned=tuple(content["not_tuned"]),
        settings_from=content["settings_from"],
    )


def _axis(entry: Mapping[str, Any]) -> Axis:
    relative = "times" in entry
    choices = entry["times"] if relative else entry["values"]
    return Axis(tuple(entry["settings"]), tuple(map(tuple, choices)), relative)


def points(method: str, benchmark: str, scale: str) -> tuple[Settings, ...]:
    """The settings that the search tries for a method, in the order of the grid."""
    axes = grids().methods.get(method)
    if axes is None:
        raise InputError(f"methods={method}: it has no grid in tuning.yaml")
    default = default_settings(method, benchmark, scale)

    def settings(axis: Axis, values: tuple[float, ...]) -> Settings:
        pairs = zip(axis.settings, values, strict=True)
        return {key: _times(default[key], value) if axis.relative else value for key, value in pairs}

    alternatives = [[settings(axis, values) for values in axis.choices] for axis in axes]
    return tuple({k: v for part in parts for k, v in part.items()} for parts in product(*alternatives))


def _times(value: float, factor: float) -> float:
    """A multiple of a preset's value; whole numbers stay whole."""
    return max(1, round(value * factor)) if isinstance(value, int) else float(f"{value * factor:.6g}")


@cache
def default_settings(method: str, benchmark: str, scale: str) -> Settings:
    """All settings of a method at a scale without any search."""
    return resolve(merge_settings({**SCALES[scale][benchmark].settings, "method": method})).flat()


@dataclass(frozen=True)
class Search:
    """The search for one method on one benchmark: its points, and a run for each point and seed.

    Every point is run with the first seed. The finalists, the points with the highest ACC there, are run with the
    other seeds as well.
    """

    scale: str
    benchmark: str
    method: str
    points: tuple[Settings, ...]
    jobs: tuple[tuple[Job, ...], ...]
    """For each point one run per seed."""
    seconds: float
    """Estimated duration of one run on one core."""

    @property
    def first_runs(self) -> list[Job]:
        return [runs[0] for runs in self.jobs]

    def finalists(self, first: Sequence[float]) -> list[int]:
        """The points that are run with all seeds, given the ACC of every point with the first seed."""
        ranked = sorted(range(len(first)), key=lambda point: -first[point])
        return sorted(ranked[: grids().finalists])

    def further_runs(self, finalists: Iterable[int]) -> list[Job]:
        return [job for point in finalists for job in self.jobs[point][1:]]


def searches(
    scale: str, benchmarks: Sequence[str], chosen: Sequence[str] | None, out: Path, data: str | None
) -> tuple[list[Search], list[str]]:
    """All searches that can be run here, and a line for each benchmark that cannot."""
    found, skipped = [], []
    for benchmark in _checked(scale, benchmarks):
        reason = why_absent(scale, benchmark, data)
        if reason is not None:
            skipped.append(reason)
            continue
        found += [search_of(scale, benchmark, method, out, data) for method in methods_on(scale, benchmark, chosen)]
    return found, skipped


def _checked(scale: str, benchmarks: Sequence[str]) -> list[str]:
    known = SCALES[scale]
    for name in benchmarks:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InputError(f"'{name}': no benchmark of the studies at scale {scale}{hint}; known: {', '.join(known)}")
    for name in benchmarks:
        if name in grids().settings_from:
            raise InputError(f"'{name}': not searched; it takes the settings of {grids().settings_from[name]}")
    left_out = {*grids().not_tuned, *grids().settings_from}
    return list(benchmarks) or [name for name in known if name not in left_out]


def methods_on(scale: str, benchmark: str, chosen: Iterable[str] | None = None) -> list[str]:
    """The methods that work on the data of a benchmark, or the chosen ones of them."""
    for name in chosen or ():
        if name not in methods.names():
            raise InputError(f"methods={name}: unknown method{did_you_mean(name, methods.names())}")
    name = str(merge_settings(SCALES[scale][benchmark].settings)["benchmark"])
    kind = catalogue.entry(name).kind
    usable = methods.names() if kind is None else methods.names_for(kind)
    return [method for method in usable if chosen is None or method in chosen]


def search_of(scale: str, benchmark: str, method: str, out: Path, data: str | None = None) -> Search:
    # ACC needs the accuracies at the ends of the tasks only, and evaluating every round takes a third of the time.
    base = {**SCALES[scale][benchmark].settings, "method": method, "holdout": grids().holdout, "eval_every": 0}
    where = {} if data is None else {"data": data}
    tried = points(method, benchmark, scale)
    jobs: list[tuple[Job, ...]] = []
    for point in tried:
        runs = []
        for seed in grids().seeds:
            settings = {**merge_settings({**base, **point}), "seed": seed}
            folder = run_folder(out, benchmark, method, seed, settings)
            runs.append(Job(method, seed, {**settings, **where, "out": str(folder)}, folder))
        jobs.append(tuple(runs))
    return Search(scale, benchmark, method, tried, tuple(jobs), seconds_of(jobs[0][0], benchmark, scale) or 3600.0)
