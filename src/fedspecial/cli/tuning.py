"""`fedspecial tune` and `fedspecial study tune-all`: choose λ, or the settings of all methods, on held-out data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspecial.cli.console import err, one_line_errors, out, seeds_of
from fedspecial.cli.study_runs import DataOption, JobsOption, print_plan, run_jobs
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.config import Settings
    from fedspecial.paper.tuning import Search
    from fedspecial.report.result import Result
    from fedspecial.runs.jobs import Job
    from fedspecial.runs.tune import Tuned


def tune_all(
    scale: str,
    benchmarks: Sequence[str],
    methods: Sequence[str] | None,
    folder: Path,
    results: Path,
    *,
    jobs: int | None,
    data: str | None,
    execution: Settings,
    only_plan: bool,
) -> None:
    """Search the settings of every method with the same number of runs, and write what was found to `results`."""
    from fedspecial.paper.scales import SCALES
    from fedspecial.paper.tuning import searches

    wanted, skipped = searches(scale, benchmarks, methods, folder, data)
    for line in skipped:
        err.print(f"skipped: {line}", markup=False)
    found = _without_record(wanted, results)
    if only_plan:
        runs = [_planned_runs(search) for search in found]
        for search, planned in zip(found, runs, strict=True):
            _print_search(search, len(planned))
        seconds = [search.seconds for search, planned in zip(found, runs, strict=True) for _ in planned]
        known = all(SCALES[scale][search.benchmark].seconds for search in found)
        print_plan([job for planned in runs for job in planned], seconds, known=known)
        return
    # One benchmark after the other, so that a search that is stopped has written the records of some of them.
    for benchmark in dict.fromkeys(search.benchmark for search in found):
        here = [search for search in found if search.benchmark == benchmark]
        try:
            _run(here, [search.first_runs for search in here], jobs, execution)
            _run(here, [_further_runs(search) or [] for search in here], jobs, execution)
        finally:
            _write_records(here, results)


def _without_record(found: Sequence[Search], results: Path) -> list[Search]:
    """The searches that are still to be made; those with a record are named, with what they chose."""
    from fedspecial.paper.tuning_records import recorded_settings

    left = []
    for search in found:
        chosen = recorded_settings(results, search)
        if chosen is None:
            left.append(search)
        else:
            out.print(f"{search.benchmark} {search.method}: {_line(chosen)} (recorded)", markup=False)
    return left


def _line(settings: Settings) -> str:
    return ", ".join(f"{key}={value:g}" for key, value in settings.items())


def _run(found: Sequence[Search], runs: Sequence[Sequence[Job]], parallel: int | None, execution: Settings) -> None:
    jobs = [replace(job, settings={**job.settings, **execution}) for planned in runs for job in planned]
    run_jobs(jobs, [search.seconds for search, planned in zip(found, runs, strict=True) for _ in planned], parallel)


def _finished(folder: Path) -> Result | None:
    from fedspecial.runs import directory

    return directory.finished(folder) if folder.exists() else None


def _further_runs(search: Search) -> list[Job] | None:
    from fedspecial.paper.tuning_records import further_runs

    return further_runs(search, _finished)


def _planned_runs(search: Search) -> list[Job]:
    """All runs of a search; while the finalists are not known, the first points stand for them."""
    from fedspecial.paper.tuning import grids

    further = _further_runs(search)
    return search.first_runs + (search.further_runs(range(grids().finalists)) if further is None else further)


def _print_search(search: Search, runs: int) -> None:
    tried = [" ".join(f"{key}={value:g}" for key, value in point.items()) for point in search.points]
    out.print(f"{search.benchmark} {search.method}, {runs} runs: {'; '.join(tried)}", markup=False)


def _write_records(found: Sequence[Search], results: Path) -> None:
    """Write the record of every search of which all runs are finished; the others are named."""
    from fedspecial.paper.tuning_records import finished_search, path_of, write_record
    from fedspecial.runs.provenance import versions

    for search in found:
        tried = finished_search(search, _finished)
        if tried is None:
            err.print(f"{search.benchmark} {search.method}: runs are missing, no record was written", markup=False)
            continue
        chosen = write_record(results, search, tried, versions())
        out.print(f"{search.benchmark} {search.method}: {_line(chosen)}", markup=False)
    for path in dict.fromkeys(path_of(results, search.scale, search.benchmark) for search in found):
        if path.exists():
            out.print(f"record: {path}", markup=False)


def tune(
    settings: Annotated[list[str], typer.Argument(metavar="BENCHMARK [KEY=VALUE]...")],
    method: Annotated[str, typer.Option(help="The method whose λ is searched: special or special-c.")] = "special",
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
        run_jobs(planned, [1.0] * len(planned), jobs)

    with one_line_errors():
        given = _given(settings, method, data)
        tuned = tuning.tune(**given, seeds=seeds_of(seeds), holdout=holdout, jobs=jobs, out=folder, run_jobs=run_stage)
        _print_curve(tuned)
        out.print(tuned.verdict, markup=False)
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


def _print_curve(tuned: Tuned) -> None:
    """ACC and BWT for each λ, mean ± standard deviation over the seeds, and a bar for ACC."""
    from fedspecial.report.comparison import mean_text

    means = [value.mean for value in tuned.curve.values()]
    low, top = min(means), max(means)
    for lam in sorted(tuned.curve):
        value = tuned.curve[lam]
        length = round(30 * (value.mean - low) / (top - low)) if top > low else 30
        mark = "  ← chosen" if lam == tuned.lam else ""
        acc, bwt = (mean_text(found, tuned.scale) for found in (value, tuned.bwt.get(lam)))
        numbers = f"ACC {acc:<14} BWT {bwt:<15}"
        out.print(f"λ = {lam:<5g} {numbers} {'▇' * max(1, length)}{mark}", markup=False)
