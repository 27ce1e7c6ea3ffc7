"""A result as HTML for notebooks: the accuracy matrix as a heat map, then ACC, BWT and the warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from fedspecial.core.privacy import privacy_lines

if TYPE_CHECKING:
    from fedspecial.report.result import Result
    from fedspecial.report.scale import Scale

_LOW, _HIGH = (255, 255, 255), (8, 81, 156)


def result_html(result: Result) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in result.tasks)
    rows = ""
    for name, row in zip(result.rows, result.matrix, strict=True):
        cells = "".join(_cell(value, name == result.tasks[j], result.scale) for j, value in enumerate(row))
        rows += f"<tr><th style='text-align:left'>after {escape(name)}</th>{cells}</tr>"
    numbers = " · ".join(
        f"{name} <b>{result.scale.text(value)}</b>"
        for name, value in (("ACC", result.acc), ("BWT", result.bwt), ("worst drop", result.worst_drop))
    )
    privacy = "".join(f"<p>{escape(line)}</p>" for line in privacy_lines(result.privacy)) if result.privacy else ""
    warnings = "".join(f"<li>{escape(text)}</li>" for text in result.warnings)
    return (
        f"<div><b>{escape(f'{result.method} on {result.benchmark}, seed {result.seed}: {result.scale.label}')}</b>"
        f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p>{numbers}</p>{privacy}{f'<p>Warnings:</p><ul>{warnings}</ul>' if warnings else ''}</div>"
    )


def _cell(value: float | None, diagonal: bool, scale: Scale) -> str:
    """The darker, the better; a metric without a range of 0…1 has no colours."""
    shade = value if value is not None and scale.in_percent else 0.0
    colour = tuple(round(low + (high - low) * min(1.0, max(0.0, shade))) for low, high in zip(_LOW, _HIGH, strict=True))
    text = "#000" if _luminance(colour) > 0.18 else "#fff"  # the better contrast of the two (WCAG)
    weight = ";font-weight:bold" if diagonal else ""
    style = f"text-align:right;background:rgb{colour};color:{text}{weight}".replace(" ", "")
    return f"<td style='{style}'>{scale.cell(value)}</td>"


def _luminance(colour: tuple[int, ...]) -> float:
    """Relative luminance of an sRGB colour, between 0 (black) and 1 (white)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def comparison_html(results: Mapping[str, Sequence[Result]]) -> str:
    """A row per method, mean ± standard deviation over the seeds, in per cent."""
    from fedspecial.report.comparison import Summary

    head = "".join(f"<th>{name}</th>" for name in ("method", "ACC", "BWT", "worst drop", "forgetting"))
    rows = []
    for name, runs in results.items():
        summary = Summary.of(runs)
        values = (summary.acc, summary.bwt, summary.worst_drop, summary.forgetting)
        cells = "".join(f"<td style='text-align:right'>{summary.text(value)}</td>" for value in values)
        rows.append(f"<tr><th style='text-align:left'>{escape(name)}</th>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
