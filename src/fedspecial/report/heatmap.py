"""The accuracy matrix as an HTML table, with the style sheet that it shares with the pages of ``fedspecial ui``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib import resources

LEVELS = 20


def style_sheet() -> str:
    """Colours, tables and heat maps, in a light and a dark theme."""
    return (resources.files("fedspecial.report") / "web" / "components.css").read_text(encoding="utf-8")


def heat_map(tasks: Sequence[str], matrix: Sequence[Sequence[float | None]]) -> str:
    """The same table as web/heatmap.js makes: row i shows all domains after task i, in per cent."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in tasks)
    rows = []
    for number, (name, values) in enumerate(zip(tasks, matrix, strict=True)):
        cells = "".join(_cell(value, learned=number == column) for column, value in enumerate(values))
        rows.append(f'<tr><th scope="row">after {escape(name)}</th>{cells}</tr>')
    return (
        f'<table class="heat"><thead><tr><td class="corner"></td>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _cell(value: float | None, *, learned: bool) -> str:
    if value is None:
        return '<td class="missing">·</td>'
    level = max(0, min(LEVELS, math.floor(LEVELS * value + 0.5)))
    return f'<td class="level-{level}{" learned" if learned else ""}">{100 * value:.1f}</td>'
