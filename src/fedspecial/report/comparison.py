"""Comparison of several methods: mean ± standard deviation over seeds, as a Markdown table and as a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.figure import Figure

from fedspecial.report.plots import save, show_matrix
from fedspecial.report.result import Result

ByMethod = Mapping[str, Sequence[Result]]


@dataclass(frozen=True)
class MeanStd:
    """Mean over seeds and sample standard deviation (None for a single seed)."""

    mean: float
    std: float | None

    @staticmethod
    def of(values: Iterable[float | None]) -> MeanStd | None:
        numbers = [value for value in values if value is not None]
        if not numbers:
            return None
        return MeanStd(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None)


@dataclass(frozen=True)
class Summary:
    """The results of one method over all seeds."""

    method: str
    seeds: tuple[int, ...]
    acc: MeanStd | None
    bwt: MeanStd | None
    worst_drop: MeanStd | None
    forgetting: MeanStd | None
    seconds_per_round: float
    bytes_up: float
    bytes_down: float

    @staticmethod
    def of(results: Sequence[Result]) -> Summary:
        return Summary(
            results[0].method,
            tuple(r.seed for r in results),
            MeanStd.of(r.acc for r in results),
            MeanStd.of(r.bwt for r in results),
            MeanStd.of(r.worst_drop for r in results),
            MeanStd.of(r.forgetting for r in results),
            fmean(r.seconds_per_round for r in results),
            fmean(r.bytes_up for r in results),
            fmean(r.bytes_down for r in results),
        )


def mean_matrix(runs: Sequence[Result]) -> list[list[float]]:
    """The accuracy matrix averaged over the seeds."""
    return [[fmean(cell) for cell in zip(*rows, strict=True)] for rows in zip(*(r.matrix for r in runs), strict=True)]


def markdown(results: ByMethod) -> str:
    """A table with accuracies in per cent, and BWT, worst drop and forgetting in percentage points."""
    lines = ["| method | ACC | BWT | worst drop | forgetting | s/round |", "|---|---|---|---|---|---|"]
    for runs in results.values():
        summary = Summary.of(runs)
        cells = [percent_text(v) for v in (summary.acc, summary.bwt, summary.worst_drop, summary.forgetting)]
        lines.append(f"| {summary.method} | {' | '.join(cells)} | {summary.seconds_per_round:.2f} |")
    return "\n".join(lines) + "\n"


def percent_text(value: MeanStd | None) -> str:
    """A fraction as per cent, "mean ± standard deviation"."""
    if value is None:
        return "not defined"
    return f"{100 * value.mean:.2f}" + ("" if value.std is None else f" ± {100 * value.std:.2f}")


def draw_matrices(results: ByMethod, path: Path) -> None:
    """Draw the accuracy matrices of all methods side by side, averaged over the seeds."""
    first = next(iter(results.values()))
    size = len(first[0].tasks)
    figure = Figure(figsize=(1.2 + (1.2 + 0.8 * size) * len(results), 1.4 + 0.6 * size), layout="constrained")
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for axes, runs in zip(panels, results.values(), strict=True):
        image = show_matrix(axes, mean_matrix(runs), runs[0].tasks, rows=axes is panels[0])
        summary = Summary.of(runs)
        axes.set_title(
            f"{summary.method}\nACC {percent_text(summary.acc)}, BWT {percent_text(summary.bwt)}", fontsize=9
        )
    figure.colorbar(image, ax=list(panels), shrink=0.9)
    seeds = ", ".join(str(run.seed) for run in first)
    figure.suptitle(f"{first[0].benchmark}: accuracy in per cent, mean over seeds {seeds}", fontsize=10)
    save(figure, path)
