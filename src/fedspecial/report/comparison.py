"""Comparison of several methods: mean ± standard deviation over seeds, as a Markdown table and as a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.figure import Figure

from fedspecial.report.plots import save, show_matrix
from fedspecial.report.result import Result
from fedspecial.report.scale import ACCURACY, NOT_DEFINED, Scale

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
    scale: Scale = ACCURACY

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
            results[0].scale,
        )

    def text(self, value: MeanStd | None) -> str:
        """A value of the main metric as "mean ± standard deviation"."""
        return mean_text(value, self.scale)


def mean_matrix(runs: Sequence[Result]) -> list[list[float | None]]:
    """The accuracy matrix averaged over the seeds; None where no seed has a value."""
    rows = zip(*(run.matrix for run in runs), strict=True)
    return [[_mean_known(cell) for cell in zip(*row, strict=True)] for row in rows]


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def markdown(results: ByMethod) -> str:
    """A table with accuracies in per cent, and BWT, worst drop and forgetting in percentage points; a main metric whose
    range is not 0…1 is shown as it is."""
    lines = ["| method | ACC | BWT | worst drop | forgetting | s/round |", "|---|---|---|---|---|---|"]
    for runs in results.values():
        summary = Summary.of(runs)
        cells = [summary.text(v) for v in (summary.acc, summary.bwt, summary.worst_drop, summary.forgetting)]
        lines.append(f"| {summary.method} | {' | '.join(cells)} | {summary.seconds_per_round:.2f} |")
    notes = warning_lines(results)
    return "\n".join([*lines, *([""] if notes else []), *(f"- {note}" for note in notes)]) + "\n"


def warning_lines(results: ByMethod) -> list[str]:
    """The warnings of all runs, with the method and the seeds that they concern."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for name, runs in results.items():
        for run in runs:
            for text in run.warnings:
                seeds.setdefault((name, text), []).append(run.seed)
    return [f"warning ({name}, seed {', '.join(map(str, own))}): {text}" for (name, text), own in seeds.items()]


def mean_text(value: MeanStd | None, scale: Scale = ACCURACY) -> str:
    """A value on the scale of its metric, "mean ± standard deviation"."""
    if value is None:
        return NOT_DEFINED
    return scale.text(value.mean) + ("" if value.std is None else f" ± {scale.text(value.std)}")


def draw_matrices(results: ByMethod, path: Path) -> None:
    """Draw the accuracy matrices of all methods side by side, averaged over the seeds."""
    first = next(iter(results.values()))
    width, height = (1.2 + 0.8 * len(first[0].tasks)) * len(results), 0.6 * len(first[0].rows)
    figure = Figure(figsize=(1.2 + width, 1.4 + height), layout="constrained")
    panels = figure.subplots(1, len(results), squeeze=False)[0]
    for axes, runs in zip(panels, results.values(), strict=True):
        summary = Summary.of(runs)
        tasks, points, rows = runs[0].tasks, runs[0].rows, axes is panels[0]
        image = show_matrix(axes, mean_matrix(runs), tasks, summary.scale, rows=rows, points=points)
        axes.set_title(
            f"{summary.method}\nACC {summary.text(summary.acc)}, BWT {summary.text(summary.bwt)}", fontsize=9
        )
    figure.colorbar(image, ax=list(panels), shrink=0.9)
    seeds = ", ".join(str(run.seed) for run in first)
    figure.suptitle(f"{first[0].benchmark}: {first[0].scale.label}, mean over seeds {seeds}", fontsize=10)
    save(figure, path)
