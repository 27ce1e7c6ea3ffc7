"""A comparison on the command line: its progress and its table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedspecial.cli.console import err, out
from fedspecial.config import Settings

if TYPE_CHECKING:
    from fedspecial.runs.compare import Comparison
    from fedspecial.runs.jobs import Job


def compare_with_progress(given: Settings) -> Comparison:
    from fedspecial.cli.progress import JobsProgress
    from fedspecial.runs import compare as comparison
    from fedspecial.runs.jobs import progress

    display = JobsProgress(out)

    def tick(jobs: Sequence[Job]) -> None:
        display.update(len(jobs), *progress(jobs))

    try:
        with display.showing():
            return comparison.compare(**given, tick=tick)
    except KeyboardInterrupt:
        err.print(f"\nstopped; continue with the same command and --out {given['out']}", markup=False)
        sys.exit(130)


def print_comparison(benchmark: str, comparison: Comparison, matrices: bool) -> None:
    from fedspecial.cli.tables import comparison_table, matrix_table, result_line
    from fedspecial.report.comparison import mean_matrix, warning_lines

    if matrices:
        for name, runs in comparison.results.items():
            seeds = ", ".join(str(r.seed) for r in runs)
            title, first = f"{name} on {benchmark} (seed {seeds})", runs[0]
            out.print(matrix_table(title, first.tasks, mean_matrix(runs), first.scale, first.rows))
            if len(runs) == 1:
                out.print(result_line(runs[0]) + "\n")
    results = next(iter(comparison.results.values()))
    used, scale = [str(run.seed) for run in results], results[0].scale
    unit = "per cent" if scale.in_percent else scale.title
    several = f"{benchmark}, seeds {', '.join(used)}: {unit}, mean ± standard deviation"
    title = several if len(used) > 1 else f"{benchmark}, seed {used[0]}: {unit}"
    out.print(comparison_table(title, list(comparison.summaries.values())))
    for line in warning_lines(comparison.results):
        out.print(line, markup=False)
    out.print(f"all files are in {comparison.folder}; see comparison.png and comparison.md there", markup=False)
