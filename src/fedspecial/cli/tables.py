"""Results as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fedspecial.report.comparison import Summary, percent_text
from fedspecial.report.model_card import percent
from fedspecial.report.result import Result


def matrix_table(title: str, tasks: Sequence[str], matrix: Sequence[Sequence[float]]) -> Table:
    """Accuracies after each task (rows) on every domain (columns); the diagonal is bold: the domain just learned."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("accuracy in %")
    for name in tasks:
        table.add_column(name, justify="right")
    for i, row in enumerate(matrix):
        cells = [f"[bold]{100 * v:.1f}[/]" if i == j else f"{100 * v:.1f}" for j, v in enumerate(row)]
        table.add_row(f"after {tasks[i]}", *cells)
    return table


def result_line(result: Result) -> str:
    line = f"ACC {percent(result.acc)}   BWT {percent(result.bwt)}   worst drop {percent(result.worst_drop)}"
    if result.acc_masked is not None:
        line += f"   (task-masked: ACC {percent(result.acc_masked)}   BWT {percent(result.bwt_masked)})"
    return line


def comparison_table(title: str, summaries: Sequence[Summary]) -> Table:
    """A table that fits into 80 columns with three seeds; comparison.md and the result.json files contain more."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("method")
    for column in ("ACC", "BWT", "worst drop", "s/round", "MB ↑/↓"):
        table.add_column(column, justify="right")
    best = max(summary.acc.mean for summary in summaries if summary.acc is not None)
    for summary in summaries:
        acc = percent_text(summary.acc)
        bold = summary.acc is not None and summary.acc.mean == best
        table.add_row(
            summary.method,
            f"[bold]{acc}[/]" if bold else acc,
            percent_text(summary.bwt),
            percent_text(summary.worst_drop),
            f"{summary.seconds_per_round:.2f}",
            f"{summary.bytes_up / 1e6:.1f}/{summary.bytes_down / 1e6:.1f}",
        )
    return table
