"""Results as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedspecial.core.privacy import privacy_lines
from fedspecial.metrics.matrix import Matrix
from fedspecial.report.comparison import Summary
from fedspecial.report.model_card import plain
from fedspecial.report.result import Result
from fedspecial.report.scale import ACCURACY, Scale, title_of


def matrix_table(
    title: str, tasks: Sequence[str], matrix: Matrix, scale: Scale = ACCURACY, points: Sequence[str] | None = None
) -> Table:
    """Accuracies after each task (rows) on every domain (columns); the domain just learned is bold.

    points: the domain learned before each row, where this is not the list of tasks
    """
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    table.add_column(scale.label.replace("per cent", "%"), overflow="fold")
    for name in tasks:
        table.add_column(escape(name), justify="right", overflow="fold")
    for learned, row in zip(points or tasks, matrix, strict=True):
        cells = [f"[bold]{scale.cell(v)}[/]" if learned == tasks[j] else scale.cell(v) for j, v in enumerate(row)]
        table.add_row(escape(f"after {learned}"), *cells)
    return table


def result_line(result: Result) -> str:
    text = result.scale.text
    line = f"ACC {text(result.acc)}   BWT {text(result.bwt)}   worst drop {text(result.worst_drop)}"
    if result.acc_masked is not None:
        line += f"   (task-masked: ACC {text(result.acc_masked)}   BWT {text(result.bwt_masked)})"
    privacy = privacy_lines(result.privacy) if result.privacy else []
    detected = [detection_line(result.detection)] if result.detection else []
    timed = [time_line(result.time)] if result.time else []
    return "\n".join([line, *privacy, *detected, *timed, *result.notes])


def time_line(found: Mapping[str, Any]) -> str:
    """Simulated time and staleness, in one line."""
    parts = []
    if found["seconds"] is not None:
        parts.append(f"simulated time {found['seconds']:,.0f} s")
        parts.append(f"work of clients {found['client_seconds']:,.0f} s, of which {found['lost_seconds']:,.0f} s lost")
    if found["mean_staleness"] is not None:
        parts.append(f"staleness of updates {found['mean_staleness']:.2f} (at most {found['max_staleness']})")
    return "   ".join(parts)


def detection_line(found: Mapping[str, Any]) -> str:
    """How well tasks were detected, in one line."""
    delays = [delay for delay in found["delays"] if delay is not None]
    rounds = f" (after {', '.join(map(str, delays))} rounds)" if delays else ""
    return (
        f"borders detected: {len(delays)} of {len(found['delays'])}{rounds}   "
        f"false alarms: {len(found['false_alarms'])} ({found['false_alarms_per_100_rounds']:.1f} per 100 rounds)"
    )


def metrics_table(result: Result) -> Table | None:
    """Further metrics on every domain at the end of the run; None if there are none."""
    rows = {name: matrix[-1] for name, matrix in result.metrics.items()}
    rows = {name: row for name, row in rows.items() if not any(isinstance(value, list) for value in row)}
    if not rows:
        return None
    table = Table(title="further metrics after the last task", title_justify="left")
    table.add_column("")
    for name in result.tasks:
        table.add_column(escape(name), justify="right", overflow="fold")
    for name, row in rows.items():
        table.add_row(escape(title_of(name)), *map(plain, row))
    return table


def comparison_table(title: str, summaries: Sequence[Summary]) -> Table:
    """A table that fits into 80 columns with three seeds; comparison.md and the result.json files contain more."""
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    table.add_column("method", overflow="fold")
    for column in ("ACC", "BWT", "worst drop", "s/round", "MB ↑/↓"):
        table.add_column(column, justify="right")
    best = max((summary.acc.mean for summary in summaries if summary.acc is not None), default=None)
    for summary in summaries:
        acc = summary.text(summary.acc)
        bold = summary.acc is not None and summary.acc.mean == best
        table.add_row(
            escape(summary.method),
            f"[bold]{acc}[/]" if bold else acc,
            summary.text(summary.bwt),
            summary.text(summary.worst_drop),
            f"{summary.seconds_per_round:.2f}",
            f"{summary.bytes_up / 1e6:.1f}/{summary.bytes_down / 1e6:.1f}",
        )
    return table
