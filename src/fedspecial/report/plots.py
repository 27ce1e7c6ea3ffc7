"""Figures of a run, drawn from its events: the accuracy matrix, and accuracy and drift per round."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial.core.colours import distinct_colours
from fedspecial.core.events import of_kind
from fedspecial.core.extension import task_names
from fedspecial.core.figure_text import show_dollars
from fedspecial.core.files import write_atomic
from fedspecial.metrics.matrix import Matrix
from fedspecial.report.result import Result
from fedspecial.report.scale import ACCURACY, Scale
from fedspecial.theory.certificates.run import certify_run
from fedspecial.theory.plots import plot_drift

if TYPE_CHECKING:  # slow to import, and not needed by a site that only trains
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


def draw_matrix(result: Result, path: Path) -> None:
    """Heat map of the accuracy: row i shows all domains after training on task i."""
    from matplotlib.figure import Figure

    size = (1.6 + 1.1 * len(result.tasks), 1.2 + 0.8 * len(result.rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    image = show_matrix(axes, result.matrix, result.tasks, result.scale, points=result.rows)
    axes.set_title(f"{result.method} on {result.benchmark}, seed {result.seed}: {result.scale.label}", fontsize=10)
    axes.set_xlabel("domain of the test data")
    figure.colorbar(image, ax=axes, shrink=0.9)
    save(figure, path)


def show_matrix(
    axes: Axes,
    matrix: Matrix,
    tasks: Sequence[str],
    scale: Scale = ACCURACY,
    *,
    rows: bool = True,
    points: Sequence[str] | None = None,
) -> AxesImage:
    """Draw one accuracy matrix; the domain just learned is bold. What is not defined stays empty.

    points: the domain learned before each row, where this is not the list of tasks
    """
    points = points or tasks
    values = [[math.nan if v is None else scale.factor * v for v in row] for row in matrix]
    low, high = (0.0, 100.0) if scale.in_percent else _span(values)
    image = axes.imshow(values, vmin=low, vmax=high, cmap="viridis", aspect="auto")
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            dark = value is not None and values[i][j] < low + 0.6 * (high - low)
            colour, weight = "white" if dark else "black", "bold" if points[i] == tasks[j] else "normal"
            axes.text(j, i, scale.cell(value), ha="center", va="center", color=colour, weight=weight)
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set_yticks(range(len(points)), [f"after {name}" for name in points] if rows else [""] * len(points))
    return image


def _span(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The smallest and the largest known value."""
    known = [value for row in values for value in row if math.isfinite(value)]
    return (min(known), max(known)) if known else (0.0, 1.0)


def draw_curves(events: Sequence[dict[str, Any]], path: Path) -> None:
    """Accuracy per round on each domain seen so far; the background alternates between tasks."""
    from matplotlib.figure import Figure

    started, rounds = of_kind(events, "run_started")[0], of_kind(events, "round")
    scale = Scale.of(started["metric"]) if "metric" in started else ACCURACY
    figure = Figure(figsize=(8.6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    tasks = task_names(events)
    visits = started.get("visits") or tasks
    colours = dict(zip(tasks, distinct_colours(len(tasks)), strict=True))
    starts = _starts_of_tasks(rounds, started["rounds"], len(visits))
    for name in tasks:
        points = [
            (starts[r["task"] - 1] + r["round"] + 1, scale.factor * r["accuracy"][name])
            for r in rounds
            if name in r["accuracy"]
        ]
        if points:
            axes.plot(*zip(*points, strict=True), label=name, color=colours[name], marker=".", markersize=3)
    for number, name in enumerate(visits):
        if number % 2:
            axes.axvspan(starts[number], starts[number + 1], color="0.94", zorder=0)
        place: dict[str, Any] = {"ha": "center", "va": "top", "transform": axes.get_xaxis_transform()}
        axes.text(
            (starts[number] + starts[number + 1]) / 2,
            0.97,
            f"training on {name}",
            fontsize=8,
            color=colours[name],
            **place,
        )
    for event in of_kind(events, "task_detected"):
        axes.axvline(event["at"] + 1, color="0.3", linestyle=":", linewidth=1)
    axes.set(xlabel="round (all tasks)", ylabel=f"test {scale.label}")
    if scale.in_percent:
        axes.set_ylim(0, 108)
    else:
        axes.margins(y=0.15)
    axes.set_xlim(0, starts[-1])
    axes.set_title(f"{started['method']} on {started['benchmark']}, seed {started['seed']}", fontsize=10)
    if any(r["accuracy"] for r in rounds):
        figure.legend(loc="outside right upper", fontsize=8, title=f"{scale.title} on", frameon=False)
    save(figure, path)


def _starts_of_tasks(rounds: Sequence[dict[str, Any]], per_task: int, tasks: int) -> list[int]:
    """How many rounds there are before each task, and in all. Asynchronous tasks may have more steps than planned."""
    lengths = [per_task] * tasks
    for event in rounds:
        lengths[event["task"] - 1] = max(lengths[event["task"] - 1], event["round"] + 1)
    return [0, *accumulate(lengths)]


def draw_drift(events: Sequence[dict[str, Any]], path: Path) -> None:
    """The distance to the anchor and the bounds on it, one panel per anchored task; no file if there is none."""
    anchored = [task for task in certify_run(events) if task.anchored and task.max_drift is not None]
    if anchored:
        plot_drift(anchored, path)


def save(figure: Figure, path: Path) -> None:
    """Write the figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    show_dollars(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    write_atomic(path, buffer.getvalue())
