"""The runs of studies and searches on the command line: their plan, and their progress while they run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from fedspecial.cli.console import err, out
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.runs.jobs import Job, TimeEstimate

DataOption = Annotated[str | None, typer.Option("--data", help="Directory with real data (default: $FEDSPECIAL_DATA).")]
JobsOption = Annotated[int | None, typer.Option(help="Runs at the same time (default: those that fit on the cores).")]

MEGABYTES_PER_RUN = 1.0
"""Size of a run directory where none is finished yet: figures, event log, and a small model."""


GpusOption = Annotated[
    str | None, typer.Option("--gpus", help="Run on these GPUs, for example 0,1: one run at a time on each.")
]


def print_plan(jobs: Sequence[Job], seconds: Sequence[float], *, known: bool, gpus: int = 0) -> None:
    """How many runs, core hours and how much disk are needed. `known`: whether durations were measured."""
    finished = [job.folder for job in jobs if (job.folder / "result.json").exists()]
    left = [cost for job, cost in zip(jobs, seconds, strict=True) if job.folder not in finished]
    sizes = [sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6 for folder in finished]
    each = sum(sizes) / len(sizes) if sizes else MEGABYTES_PER_RUN
    counts: dict[str, int] = {}
    for job in jobs:
        counts[job.method] = counts.get(job.method, 0) + 1
    out.print(f"{len(jobs)} runs: {', '.join(f'{method} {count}' for method, count in counts.items())}", markup=False)
    unit = "GPU hours" if gpus else "core hours"
    hours = f"about {sum(left) / 3600:.2f} {unit}" if known else f"{unit} unknown (no run was measured)"
    hours += f", {sum(left) / 3600 / gpus:.2f} hours on {gpus} GPUs" if known and gpus > 1 else ""
    out.print(f"{len(finished)} finished, {len(left)} left: {hours}, {each * len(left):.0f} MB of disk", markup=False)


def run_jobs(
    jobs: Sequence[Job],
    seconds: Sequence[float],
    parallel: int | None,
    gpus: Sequence[str] = (),
    done: Callable[[Job], object] = lambda job: None,
) -> None:
    """Run the missing runs and show their progress; if one fails, the others continue.

    done: called with each run that has finished
    """
    from fedspecial.runs.jobs import TimeEstimate, run_missing

    if not jobs:
        out.print("no runs needed", markup=False)
        return
    estimate = TimeEstimate(jobs, seconds)
    already = len(estimate.update()[0])
    failures: list[str] = []

    def failed(job: Job, error: Exception) -> None:
        failures.append(f"{job.folder.name}: {' '.join(str(error).split()) or type(error).__name__}")
        err.print(f"failed: {failures[-1]}", markup=False)

    def started(at_once: int) -> None:
        estimate.parallel = at_once
        out.print(f"{len(jobs)} runs, {already} already finished, {at_once} in parallel", markup=False)

    try:
        with _showing(estimate, done) as tick:
            run_missing(jobs, parallel, tick, failed, started, gpus)
            tick()
    except KeyboardInterrupt:
        err.print("\nstopped; repeat the command to continue", markup=False)
        sys.exit(130)
    if failures:
        raise InputError(f"{len(failures)} of {len(jobs)} runs failed; the first error: {failures[0]}")


@contextmanager
def _showing(estimate: TimeEstimate, done: Callable[[Job], object]) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, otherwise one line per finished run; both show the remaining time."""
    from fedspecial.runs import directory

    def describe(job: Job, left: float) -> str:
        result = directory.finished(job.folder)
        bwt = "" if result is None or result.bwt is None else f"  BWT {result.scale.text(result.bwt):>6s}"
        acc = "" if result is None else f"  ACC {result.scale.text(result.acc):>5s}{bwt}"
        return f"[{len(estimate.finished)}/{len(estimate.jobs)}] {job.folder.name}{acc}  {duration(left)} left"

    if not out.is_terminal:

        def print_lines() -> None:
            new, _, left = estimate.update()
            for job in new:
                done(job)
                out.print(describe(job, left), markup=False)

        yield print_lines
        return
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(24),
        TextColumn("{task.percentage:.0f} %  {task.fields[left]}"),
    )
    with Progress(*columns, console=out) as bar:
        line = bar.add_task("runs", total=1.0, left="")

        def show() -> None:
            new, share, left = estimate.update()
            for job in new:
                done(job)
                out.print(describe(job, left), markup=False)
            title = f"{len(estimate.finished)} of {len(estimate.jobs)} runs"
            bar.update(line, completed=share, description=title, left=f"{duration(left)} left")

        yield show


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs={jobs}: must be at least 1")
