"""What was done for each method, said beside its numbers: how it was cut down, what it stores, whether it diverged."""

from __future__ import annotations

from dataclasses import fields
from statistics import fmean
from typing import Any

from fedspecial import methods
from fedspecial.methods.srfdil import SrFdil
from fedspecial.paper.common import FULL
from fedspecial.paper.grid import GridPoint, StudyResults, merged_settings
from fedspecial.paper.settings_table import shown
from fedspecial.paper.spec import Row
from fedspecial.report.warnings import DIVERGED

NAMES = {("pfeddil", "signal"): "no auxiliary head"}
"""Settings whose values do not say by themselves what is left out."""


def note_of(results: StudyResults, point: GridPoint) -> str:
    """The note on a row, or "" if its method runs as it should; only for rows with runs."""
    if not results.runs[point]:
        return ""
    own = _replay_note(results, point) if point.row.method == "srfdil" else _reduced_note(results, point)
    return " ".join(filter(None, (own, _divergence_note(results, point))))


def _divergence_note(results: StudyResults, point: GridPoint) -> str:
    """The accuracies of a diverged training explain a mean and a spread that look odd."""
    seeds = ", ".join(map(str, diverged_seeds(results, point)))
    return f"The training diverged with seed {seeds}." if seeds else ""


def diverged_seeds(results: StudyResults, point: GridPoint) -> list[int]:
    """The seeds with which the training diverged."""
    runs = results.runs[point].items()
    return [seed for seed, run in runs if any(text.startswith(DIVERGED) for text in run.result.warnings)]


def _reduced_note(results: StudyResults, point: GridPoint) -> str:
    reduced = reduced_settings(results, point)
    if not reduced:
        return ""
    texts = []
    for key, (value, default) in reduced.items():
        name = NAMES.get((point.row.method, key))
        text = f"`{key}` {shown(value)} (default {shown(default)})"
        texts.append(f"{name}, {text}" if name else text)
    return f"Cut down for a CPU: {'; '.join(texts)}."


def reduced_settings(results: StudyResults, point: GridPoint) -> dict[str, tuple[Any, Any]]:
    """The settings that say how much work a method does, where they differ from its defaults: (value, default)."""
    method = point.row.method
    if method not in FULL:
        return {}
    defaults = {field.name: field.default for field in fields(methods.find(method))}
    used = merged_settings(results.study, point, results.request.scale, results.tuning)
    values = {key: used.get(key, defaults[key]) for key, _ in FULL[method].settings}
    return {key: (value, defaults[key]) for key, value in values.items() if value != defaults[key]}


def _replay_note(results: StudyResults, point: GridPoint) -> str:
    """What share of its samples a client stores, and how many more local steps it takes than with FedAvg."""
    sweep = results.study.sweep
    if sweep is not None and sweep.setting == "cache":
        return ""
    used = merged_settings(results.study, point, results.request.scale, results.tuning)
    cache = int(used.get("cache", SrFdil.cache))
    text = f"Our reading of SR-FDIL: a client stores {cache} samples"
    seen, steps = (_mean(results, point, key) for key in ("samples_per_client", "mean_steps"))
    if seen:
        text += f", {100 * cache / seen:.1f} % of the {seen:.0f} that it sees on average"
    base = next((p for p in results.runs if p == GridPoint(point.benchmark, Row("fedavg"), point.x)), None)
    theirs = None if base is None else _mean(results, base, "mean_steps")
    if steps and theirs:
        text += f", and takes {steps / theirs:.2f} times as many local steps as with FedAvg"
    return f"{text}."


def _mean(results: StudyResults, point: GridPoint, key: str) -> float | None:
    values = results.values(point.benchmark, point.row.key, point.x, key)
    return fmean(values.values()) if values else None
