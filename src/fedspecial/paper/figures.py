"""The figures of a study, drawn from the same numbers as its tables."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import product
from statistics import fmean, stdev

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedspecial.paper.asynchrony import ROWS, draw
from fedspecial.paper.grid import StudyResults
from fedspecial.paper.metrics import FinishedRun, metric, second_task
from fedspecial.paper.spec import Row
from fedspecial.report.comparison import MeanStd, mean_matrix
from fedspecial.report.heatmap import heat_map
from fedspecial.report.plots import show_matrix

INK, OURS, PAPER, GRID = "#22262b", "#0b6e99", "#b3541e", "#d9dde2"
UNITS = {"acc": "in per cent", "bwt": "in percentage points"}
COLOURS = (OURS, PAPER, "#2e7d32", "#6a4c93")
STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a9099",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "fedspecial",
}


@dataclass(frozen=True)
class StudyFigure:
    """A figure with the stem of its file names and its caption."""

    stem: str
    caption: str
    figure: Figure
    html: str = ""
    """The same as HTML, where the page can show it in this way."""

    def encoded(self, form: str) -> bytes:
        """The figure as a file, "png" or "svg"; the same figure always gives the same bytes."""
        FigureCanvasAgg(self.figure)
        buffer = io.BytesIO()
        with rc_context(STYLE):  # type: ignore[arg-type]
            self.figure.savefig(buffer, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
        return buffer.getvalue()


def figures_of(results: StudyResults) -> list[StudyFigure]:
    """All figures of a study that have at least one run."""
    if results.study.figure is None or not results.finished:
        return []
    with rc_context(STYLE):  # type: ignore[arg-type]
        return list(FIGURES[results.study.figure](results))


def _stem(results: StudyResults, *parts: str) -> str:
    return "-".join([results.study.name, results.request.scale, *parts])


def _label(row: Row) -> str:
    """The label of a row with γ_G typeset by matplotlib."""
    return row.label.replace("γ_G", r"$\gamma_G$")


def _with_runs(results: StudyResults) -> list[str]:
    return [benchmark for benchmark in results.benchmarks if benchmark not in results.absent]


def _dots(results: StudyResults) -> Iterator[StudyFigure]:
    """ACC and BWT of every method, ours and the published ones."""
    for benchmark in _with_runs(results):
        rows = [row for row in results.study.rows if results.measured(benchmark, row.key, None, "acc")]
        beside = any(results.published(benchmark, row.key, None, key) for row in rows for key in ("acc", "bwt"))
        longest = max((len(row.label) for row in rows), default=0)
        width = 8.4 + 0.07 * max(0, longest - 30)  # the panels stay wide enough for their titles
        figure = Figure(figsize=(width, 1.3 + 0.36 * len(rows)), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, key in zip(panels, ("acc", "bwt"), strict=True):
            for at, row in enumerate(rows):
                _dot(axes, results.measured(benchmark, row.key, None, key), at - 0.13 * beside, OURS, "o")
                _dot(axes, results.published(benchmark, row.key, None, key), at + 0.17, PAPER, "D")
            axes.set_title(f"{metric(key).title} {UNITS[key]}")
            axes.grid(axis="y", visible=False)
        panels[0].set_yticks(range(len(rows)), [_label(row) for row in rows])
        panels[0].invert_yaxis()
        if beside:
            names = ((OURS, "o", "ours"), (PAPER, "D", "published (different data, model and scale)"))
            for colour, mark, name in names:
                panels[1].plot([], [], mark, color=colour, markersize=5, label=name)
            figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        label = results.label(benchmark)
        yield StudyFigure(_stem(results, benchmark), f"{label}: mean and standard deviation over seeds", figure)


def _dot(axes: Axes, value: MeanStd | None, at: float, colour: str, mark: str) -> None:
    if value is not None:
        axes.errorbar(value.mean, at, xerr=value.std, fmt=mark, color=colour, markersize=5, capsize=2, elinewidth=1.2)


def _lines(results: StudyResults) -> Iterator[StudyFigure]:
    """ACC and BWT over the swept values, one line per row; published values are dashed."""
    sweep = results.study.sweep
    assert sweep is not None
    for benchmark in _with_runs(results):
        figure = Figure(figsize=(8.4, 3.3), layout="constrained")
        panels = figure.subplots(1, 2)
        xs = sweep.values[results.request.scale]
        for axes, key in zip(panels, ("acc", "bwt"), strict=True):
            for colour, row in zip(COLOURS, results.study.rows, strict=False):
                for mark, suffix, read in (("o-", "", results.measured), ("D--", ", published", results.published)):
                    found = [(at, v) for at, x in enumerate(xs) if (v := read(benchmark, row.key, x, key)) is not None]
                    if found:
                        means, errors = [v.mean for _, v in found], [v.std or 0 for _, v in found]
                        style = {"color": colour, "capsize": 3, "markersize": 5, "label": _label(row) + suffix}
                        axes.errorbar([at for at, _ in found], means, errors, fmt=mark, **style)
            axes.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
            axes.set_xlabel(sweep.symbol)
            axes.set_title(f"{metric(key).title} {UNITS[key]}")
        panels[0].legend()
        caption = f"{results.label(benchmark)}: mean and standard deviation over seeds"
        yield StudyFigure(_stem(results, benchmark), caption, figure)


def _scatter(results: StudyResults) -> Iterator[StudyFigure]:
    """(ACC, BWT) for each λ: markers distinguish benchmarks and rows, colour shows λ."""
    sweep = results.study.sweep
    assert sweep is not None
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    xs = sweep.values[results.request.scale]
    shown = None
    several = len(results.study.rows) > 1
    for mark, (benchmark, row) in zip("osD^vPX*", product(_with_runs(results), results.study.rows), strict=False):
        points = []
        side = -1 if several and row == results.study.rows[0] else 1  # labels of neighbouring curves must not overlap
        for x in xs:
            acc, bwt = (results.measured(benchmark, row.key, x, key) for key in ("acc", "bwt"))
            if acc is not None and bwt is not None:
                points.append((x, acc, bwt))
        if not points:
            continue
        accs, bwts = [acc.mean for _, acc, _ in points], [bwt.mean for _, _, bwt in points]
        axes.plot(accs, bwts, color=GRID, zorder=1)
        for x, acc, bwt in points:
            axes.errorbar(acc.mean, bwt.mean, bwt.std, acc.std, fmt="none", color="#a9b0b8", elinewidth=0.8, zorder=2)
            axes.annotate(
                f"{x:g}", (acc.mean, bwt.mean), (7 * side, -3), textcoords="offset points", fontsize=8,
                horizontalalignment="left" if side > 0 else "right",
            )  # fmt: skip
        shown = axes.scatter(
            accs, bwts, c=[x for x, _, _ in points], cmap="viridis", vmin=0, vmax=max(xs), marker=mark, s=52, zorder=3,
            edgecolors="white", label=results.label(benchmark) + (f": {_label(row)}" if several else ""),
        )  # fmt: skip
    axes.set(xlabel="ACC in per cent", ylabel="BWT in percentage points")
    if shown is not None:
        figure.colorbar(shown, ax=axes, label=sweep.symbol)
        axes.legend(loc="lower left")
    yield StudyFigure(
        _stem(results, "scatter"),
        f"Higher points forget less; points further right have a higher final accuracy. Numbers: {sweep.symbol}",
        figure,
    )


def _curves(results: StudyResults) -> Iterator[StudyFigure]:
    """Accuracy on task 1, task 2 and both, per round of task 2."""
    for benchmark in _with_runs(results):
        figure = Figure(figsize=(9.6, 3.3), layout="constrained")
        panels = figure.subplots(1, 3)
        names: list[str] = []
        for colour, row in zip(COLOURS, results.study.rows, strict=False):
            runs = _runs(results, benchmark, row)
            names = names or (runs[0].result.tasks[:2] if runs else [])
            for column, axes in enumerate(panels):
                curves = [[100 * point[column] for point in second_task(run)] for run in runs]
                _band(axes, curves, colour, _label(row))
        for axes, title in zip(panels, [f"task 1: {names[0]}", f"task 2: {names[1]}", "both tasks"], strict=True):
            axes.set_title(title)
            axes.set_xlabel("round of task 2")
        panels[0].set_ylabel("accuracy in per cent")
        figure.legend(*panels[2].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        caption = f"{results.label(benchmark)}: mean over seeds; the band is one standard deviation"
        yield StudyFigure(_stem(results, benchmark), caption, figure)


def _runs(results: StudyResults, benchmark: str, row: Row) -> list[FinishedRun]:
    return [
        run
        for point, runs in results.runs.items()
        if (point.benchmark, point.row) == (benchmark, row)
        for run in runs.values()
    ]


def _band(axes: Axes, curves: list[list[float]], colour: str, label: str) -> None:
    if not curves or not curves[0]:
        return
    means = [fmean(values) for values in zip(*curves, strict=True)]
    spreads = [stdev(values) if len(values) > 1 else 0.0 for values in zip(*curves, strict=True)]
    rounds = range(1, len(means) + 1)
    axes.plot(rounds, means, color=colour, label=label, linewidth=1.8)
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)


def _matrices(results: StudyResults) -> Iterator[StudyFigure]:
    """The accuracy matrices of all rows, averaged over the seeds."""
    for benchmark in _with_runs(results):
        rows = [row for row in results.study.rows if _runs(results, benchmark, row)]
        across = min(4, len(rows))
        down = -(-len(rows) // across)
        size = len(_runs(results, benchmark, rows[0])[0].result.tasks)
        figure = Figure(figsize=(1.4 + 2.5 * across, 0.5 + (0.6 + 0.38 * size) * down), layout="constrained")
        panels = figure.subplots(down, across, squeeze=False)
        tables = []
        for number, axes in enumerate(panels.flat):
            if number >= len(rows):
                axes.set_visible(False)
                continue
            runs = _runs(results, benchmark, rows[number])
            tasks, matrix = runs[0].result.tasks, mean_matrix([run.result for run in runs])
            tables.append(f"<div><h4>{escape(rows[number].label)}</h4>{heat_map(tasks, matrix)}</div>")
            axes.grid(visible=False)
            show_matrix(axes, matrix, tasks, rows=number % across == 0)
            axes.set_title(_label(rows[number]))
            axes.tick_params(labelsize=7)
            for text in axes.texts:
                text.set_fontsize(8)
        label = results.label(benchmark)
        caption = (
            f"{label}: accuracy in per cent, mean over seeds. Each row shows the accuracy on all domains after "
            "training on one more of them"
        )
        yield StudyFigure(_stem(results, benchmark), caption, figure, "".join(tables))


def _drift(results: StudyResults) -> Iterator[StudyFigure]:
    """The distance to the anchor and its bound, per round, for every run."""
    from fedspecial.theory.certificates.run import certify_run

    for benchmark in _with_runs(results):
        runs = [run for row in results.study.rows for run in _runs(results, benchmark, row) if run.events()]
        if not runs:  # records have no event log
            continue
        tasks = [[t for t in certify_run(run.events()) if t.anchored and t.max_drift is not None] for run in runs]
        figure = Figure(figsize=(9.6, 3.3), layout="constrained")
        panels = figure.subplots(1, max(map(len, tasks), default=1), squeeze=False)[0]
        for run, anchored in zip(runs, tasks, strict=True):
            for axes, task in zip(panels, anchored, strict=False):
                rounds = [entry.round + 1 for entry in task.rounds]
                first = run is runs[0]
                bounds, drifts = [e.recursion_bound for e in task.rounds], [e.drift for e in task.rounds]
                axes.plot(rounds, bounds, "--", color=PAPER, linewidth=1.2, label="bound" if first else None)
                axes.plot(rounds, drifts, color=OURS, linewidth=1.6, label="drift" if first else None)
                axes.set_title(f"task {task.task}")
                axes.set_xlabel("round")
        panels[0].set_ylabel("distance to the anchor")
        panels[0].legend()
        caption = f"{results.label(benchmark)}: SPECIAL's distance to the anchor and the bound on it; one line per seed"
        yield StudyFigure(_stem(results, benchmark), caption, figure)


def _asynchrony(results: StudyResults) -> Iterator[StudyFigure]:
    """Accuracy over simulated time, and how stale updates were."""
    for benchmark in _with_runs(results):
        logs = {row.key: [log for run in _runs(results, benchmark, row) if (log := run.events())] for row in ROWS}
        caption = "accuracy over simulated time for the first seed, and the staleness of all updates"
        yield StudyFigure(_stem(results, benchmark), f"{results.label(benchmark)}: {caption}", draw(logs, COLOURS))


FIGURES: Mapping[str, Callable[[StudyResults], Iterator[StudyFigure]]] = {
    "dots": _dots,
    "lines": _lines,
    "scatter": _scatter,
    "curves": _curves,
    "matrices": _matrices,
    "drift": _drift,
    "asynchrony": _asynchrony,
}
