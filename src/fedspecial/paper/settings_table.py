"""Where the settings of each method come from, one column per benchmark: a recorded search, or the preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from fedspecial.paper.grid import GridPoint, StudyResults, tuned_settings
from fedspecial.paper.tuning import grids

TITLE = "Settings of the methods"
PRESET = "preset"
NOTE = (
    "The settings come from searches of equal size on held-out training data; the other settings of each method are "
    f"those of the benchmark's preset. Where a cell says “{PRESET}”, no search was recorded and all are."
)
NOTHING_RECORDED = "No search for settings was recorded; every method has the values of the benchmark's preset."
NO_RUN = "–"


@dataclass(frozen=True)
class SettingsTable:
    """Methods in rows, benchmarks with runs in columns."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str


def settings_table(results: StudyResults) -> SettingsTable | None:
    """None without runs."""
    points: dict[tuple[str, str], GridPoint] = {}
    for point, found in results.runs.items():
        if found:
            points[point.row.method, point.benchmark] = point
    if not points:
        return None
    benchmarks = [name for name in results.benchmarks if any(name == used for _, used in points)]
    names = dict.fromkeys(method for method, _ in points)
    rows = tuple((name, *(_cell(results, points.get((name, b))) for b in benchmarks)) for name in names)
    heads = ("method", *(_head(results, benchmark) for benchmark in benchmarks))
    searched = any(cell not in (PRESET, NO_RUN) for row in rows for cell in row[1:])
    return SettingsTable(heads, rows, NOTE if searched else NOTHING_RECORDED)


def _head(results: StudyResults, benchmark: str) -> str:
    source = grids().settings_from.get(benchmark)
    return results.label(benchmark) + (f" (those of {results.label(source)})" if source else "")


def _cell(results: StudyResults, point: GridPoint | None) -> str:
    if point is None:
        return NO_RUN
    found = tuned_settings(results.study, point, results.request.scale, results.tuning)
    return PRESET if found is None else _listed(found)


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {shown(value)}" for key, value in settings.items())


def shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def as_markdown(table: SettingsTable) -> list[str]:
    """Folded, because it is longer than the results that it explains."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (table.heads, *table.rows)]
    lines.insert(1, "|---" * len(table.heads) + "|")
    return ['<details markdown="1">', f"<summary>{TITLE}</summary>", "", table.note, "", *lines, "", "</details>"]


def as_html(table: SettingsTable) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return (
        f'<details><summary>{TITLE}</summary>\n<p class="note">{escape(table.note)}</p>\n'
        f'<table class="settings"><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></details>'
    )
