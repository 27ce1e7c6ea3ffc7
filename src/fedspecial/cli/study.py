"""`fedspecial study`, `report`, `tune`: reproduce the tables and figures of the paper, and choose λ."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspecial.cli.console import err, one_line_errors, out, seeds_of
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.config import Settings
    from fedspecial.paper.planning import Absent, StudyPlan
    from fedspecial.runs.jobs import Job, TimeEstimate
    from fedspecial.runs.tune import Curve

DataOption = Annotated[str | None, typer.Option("--data", help="Directory with real data (default: $FEDSPECIAL_DATA).")]
JobsOption = Annotated[int | None, typer.Option(help="Number of runs in parallel (default: number of cores).")]
SCALE_NAMES = ("paper", "cpu", "tiny")


def study(
    arguments: Annotated[list[str], typer.Argument(metavar="list | NAME... [workers=N]...")],
    scale: Annotated[str, typer.Option(help="Scale of the runs: paper, cpu or tiny.")] = "cpu",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "25,225,2025",
    benchmarks: Annotated[str | None, typer.Option(help="Only these benchmarks, separated by commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these methods, separated by commas.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Directory for all studies and their runs.")] = Path("studies"),
    jobs: JobsOption = None,
    data: DataOption = None,
) -> None:
    """Reproduce tables and figures of the paper: run all missing runs of the named studies.

    `fedspecial study list` shows all studies. Studies share their runs; finished runs are not repeated. The settings of
    the runs are those of the study, except how they are executed, such as workers=2.

    Example:  fedspecial study main per-task --scale tiny
    """
    from fedspecial.config import parse_settings
    from fedspecial.paper.grid import StudyRequest
    from fedspecial.paper.planning import plan
    from fedspecial.paper.requests import add_requests
    from fedspecial.runs.api import execution_settings

    with one_line_errors():
        if scale not in SCALE_NAMES:
            raise InputError(f"scale={scale}: expected {', '.join(SCALE_NAMES)}")
        names = [argument for argument in arguments if "=" not in argument]
        pairs = parse_settings([argument for argument in arguments if "=" in argument])
        execution = execution_settings(pairs, "the runs of a study keep their settings")
        if names == ["list"]:
            _list(scale, data)
            return
        _check_jobs(jobs)
        numbers = seeds_of(seeds)
        requests = [StudyRequest(name, scale, numbers, _names(benchmarks), _names(methods)) for name in names]
        planned = plan(requests, folder, data)
        add_requests(folder, requests)
        for line in planned.skipped:
            err.print(f"skipped: {line}", markup=False)
        _run_rates(planned, folder)
        runs = [replace(job, settings={**job.settings, **execution}) for job in planned.jobs]
        _run_jobs(runs, planned.seconds, jobs)
        out.print(f"write the report with: fedspecial report {folder}", markup=False)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR")] = Path("studies"),
    claims: Annotated[
        Path | None, typer.Option("--claims", help="File for the list of claims (default: DIR/REPRODUCIBILITY.md).")
    ] = None,
) -> None:
    """Write the report of all studies in DIR: index.html, tables, figures, and the list of claims.

    Example:  fedspecial report studies
    """
    from fedspecial.paper.page import verdict_counts
    from fedspecial.paper.report import write_report

    with one_line_errors():
        target = claims or folder / "REPRODUCIBILITY.md"
        sections = write_report(folder, target)
        for section in sections:
            results = section.results
            line = f"{results.study.name} ({results.request.scale}): {results.finished} of {results.wanted} runs"
            out.print(line, markup=False)
        counted = ", ".join(f"{count} {kind}" for kind, count in verdict_counts(sections).items())
        out.print(f"claims: {counted}", markup=False)
        out.print(f"page: {folder / 'index.html'}   claims: {target}", markup=False)


def tune(
    settings: Annotated[list[str], typer.Argument(metavar="BENCHMARK [KEY=VALUE]...")],
    method: Annotated[str, typer.Option(help="special or special-c.")] = "special",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "25",
    holdout: Annotated[float, typer.Option(help="Fraction of the training samples used for validation.")] = 0.2,
    folder: Annotated[Path | None, typer.Option("--out", help="Directory for the runs and the preset.")] = None,
    jobs: JobsOption = None,
    data: DataOption = None,
) -> None:
    """Choose λ with the paper's two-stage search on held-out training data, and write it to a preset file.

    Example:  fedspecial tune digits-shift rounds=4 --seeds 25,225
    """
    from fedspecial.runs import tune as tuning

    def run_stage(stage: str, planned: Sequence[Job]) -> None:
        values = dict.fromkeys(job.settings["lam"] for job in planned)
        out.print(f"{stage}: λ = {', '.join(f'{x:g}' for x in values)}", markup=False)
        _run_jobs(planned, [1.0] * len(planned), jobs)

    with one_line_errors():
        given = _given(settings, method, data)
        tuned = tuning.tune(**given, seeds=seeds_of(seeds), holdout=holdout, jobs=jobs, out=folder, run_jobs=run_stage)
        _print_curve(tuned.curve, tuned.lam)
        out.print(f"best λ = {tuned.lam:g}; run it with: fedspecial run {tuned.preset}", markup=False)


def _given(settings: list[str], method: str, data: str | None) -> Settings:
    from fedspecial.config import parse_settings

    if "=" in settings[0]:
        raise InputError(f"'{settings[0]}': the first argument must be a benchmark")
    pairs = parse_settings(settings[1:])
    if "benchmark" in pairs:
        raise InputError(f"benchmark={pairs['benchmark']}: give the benchmark as the first argument")
    if "method" in pairs:
        raise InputError(f"method={pairs['method']}: use --method")
    return {"benchmark": settings[0], **pairs, "method": method, **({"data": data} if data else {})}


def _print_curve(curve: Curve, chosen: float) -> None:
    top = max(value.mean for value in curve.values())
    low = min(value.mean for value in curve.values())
    for lam in sorted(curve):
        value = curve[lam]
        length = round(40 * (value.mean - low) / (top - low)) if top > low else 40
        spread = "" if value.std is None else f" ± {100 * value.std:.2f}"
        mark = "  ← chosen" if lam == chosen else ""
        out.print(f"λ = {lam:<5g} {100 * value.mean:6.2f}{spread}  {'▇' * max(1, length)}{mark}", markup=False)


def _list(scale: str, data: str | None) -> None:
    """Print every study: its source in the paper, what it varies, and its cost at this scale."""
    from fedspecial.paper.grid import StudyRequest
    from fedspecial.paper.planning import plan
    from fedspecial.paper.registry import STUDIES
    from fedspecial.runs.cores import available_cores

    width = max(len(study.name) for study in STUDIES)
    absent: Absent = {}
    skipped: dict[str, None] = {}
    for study in STUDIES:
        cost = f"not available at scale {scale}"
        if scale in study.scales:
            planned = plan([StudyRequest(study.name, scale)], Path("studies"), data, absent)
            known = scale != "paper"
            minutes = f", about {_duration(sum(planned.seconds) / available_cores())}" if known and planned.jobs else ""
            cost = f"{len(planned.jobs)} runs{minutes}"
            skipped |= dict.fromkeys(planned.skipped)
        out.print(f"{study.name:<{width}}  {study.title}: {study.paper}", markup=False)
        out.print(f"{'':<{width}}  varies: {study.varies}; {cost}", markup=False)
    for line in skipped:
        out.print(f"skipped: {line}", markup=False)
    out.print(
        f"Times are for scale {scale}, three seeds and {available_cores()} cores, each study on its own; "
        "studies share runs.",
        markup=False,
    )


def _run_rates(planned: StudyPlan, folder: Path) -> None:
    from fedspecial.paper.rates import run_rate
    from fedspecial.paper.report import THEORY

    for sweep in planned.rates:
        if run_rate(sweep, folder / THEORY):
            out.print(f"theory: finished the sweep over {sweep}", markup=False)


def _run_jobs(jobs: Sequence[Job], seconds: Sequence[float], parallel: int | None) -> None:
    """Run the missing runs and show their progress; if one fails, the others continue."""
    from fedspecial.runs.jobs import TimeEstimate, parallel_runs, run_missing

    if not jobs:
        out.print("no runs needed", markup=False)
        return
    at_once = parallel or parallel_runs(jobs)
    estimate = TimeEstimate(jobs, seconds, at_once)
    already = len(estimate.update()[0])
    out.print(f"{len(jobs)} runs, {already} already finished, {at_once} in parallel", markup=False)
    failures: list[str] = []

    def failed(job: Job, error: Exception) -> None:
        failures.append(f"{job.folder.name}: {' '.join(str(error).split()) or type(error).__name__}")
        err.print(f"failed: {failures[-1]}", markup=False)

    try:
        with _showing(estimate) as tick:
            run_missing(jobs, at_once, tick, failed)
            tick()
    except KeyboardInterrupt:
        err.print("\nstopped; repeat the command to continue", markup=False)
        sys.exit(130)
    if failures:
        raise InputError(f"{len(failures)} of {len(jobs)} runs failed; the first error: {failures[0]}")


@contextmanager
def _showing(estimate: TimeEstimate) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, otherwise one line per finished run; both show the remaining time."""
    from fedspecial.runs import directory

    def describe(job: Job, left: float) -> str:
        result = directory.finished(job.folder)
        bwt = "" if result is None or result.bwt is None else f"  BWT {100 * result.bwt:6.2f}"
        acc = "" if result is None else f"  ACC {100 * result.acc:5.2f}{bwt}"
        return f"[{len(estimate.finished)}/{len(estimate.jobs)}] {job.folder.name}{acc}  {_duration(left)} left"

    if not out.is_terminal:

        def print_lines() -> None:
            new, _, left = estimate.update()
            for job in new:
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
                out.print(describe(job, left), markup=False)
            title = f"{len(estimate.finished)} of {len(estimate.jobs)} runs"
            bar.update(line, completed=share, description=title, left=f"{_duration(left)} left")

        yield show


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))


def _check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs={jobs}: must be at least 1")
