"""`fedspecial study` and `report`: reproduce the tables and figures of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspecial.cli.calibration import calibrate
from fedspecial.cli.console import err, one_line_errors, out, seeds_of
from fedspecial.cli.study_runs import DataOption, GpusOption, JobsOption, check_jobs, duration, print_plan, run_jobs
from fedspecial.cli.tuning import tune_all
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.config import Settings
    from fedspecial.paper.grid import StudyRequest, Tuning
    from fedspecial.paper.planning import Absent, StudyPlan
    from fedspecial.runs.jobs import Job

ResultsOption = Annotated[
    Path, typer.Option("--results", help="Directory with records: settings found by tune-all, and finished runs.")
]
SCALE_NAMES = ("paper", "cpu", "tiny")


def study(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="list | all | NAME... | calibrate [NAME]... | tune-all [BENCHMARK]... [workers=N]..."),
    ],
    scale: Annotated[str, typer.Option(help="Scale of the runs: paper, cpu or tiny.")] = "cpu",
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, separated by commas (default: 25,225,2025,2125,22025).")
    ] = None,
    benchmarks: Annotated[str | None, typer.Option(help="Only these benchmarks, separated by commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these methods, separated by commas.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Directory for all studies and their runs.")] = Path("studies"),
    results: ResultsOption = Path("results"),
    record: Annotated[
        bool, typer.Option("--record", help="Also write a small record of every finished run to RESULTS/runs.")
    ] = False,
    only_plan: Annotated[bool, typer.Option("--plan", help="List runs, core hours and disk, and run nothing.")] = False,
    jobs: JobsOption = None,
    gpus: GpusOption = None,
    data: DataOption = None,
) -> None:
    """Reproduce tables and figures of the paper: run all missing runs of the named studies.

    `fedspecial study list` shows all studies; `all` stands for those that are available at the scale. Studies share
    their runs; finished runs are not repeated. The settings of the runs are those of the study, except how they are
    executed, such as workers=2.

    `fedspecial study tune-all` searches settings for every method, with the same number of runs for each, on held-out
    training data. It writes what it found to results/tuning, from where the studies take their settings.

    `fedspecial study calibrate` times a few rounds of every method on this machine, from which --plan computes hours.

    Example:  fedspecial study main per-task --scale tiny
    """
    from fedspecial.paper.grid import SEEDS, StudyRequest
    from fedspecial.paper.requests import all_studies

    with one_line_errors():
        if scale not in SCALE_NAMES:
            raise InputError(f"scale={scale}: expected {', '.join(SCALE_NAMES)}")
        names, execution = _names_and_execution(arguments)
        if names == ["list"]:
            _list(scale, data, results)
            return
        check_jobs(jobs)
        if names[:1] == ["tune-all"]:
            _check_not_for_tune_all(seeds=seeds, benchmarks=benchmarks, gpus=gpus)
            search = partial(tune_all, scale, names[1:], _names(methods), folder, results)
            search(jobs=jobs, data=data, execution=execution, only_plan=only_plan)
            return
        if names[:1] == ["calibrate"]:
            calibrate(scale, names[1:], _names(benchmarks), _names(methods), folder, data=data, gpus=_names(gpus) or ())
            return
        numbers = SEEDS if seeds is None else seeds_of(seeds)
        wanted = [StudyRequest(name, scale, numbers, _names(benchmarks), _names(methods)) for name in names]
        requests = all_studies(wanted[0]) if names == ["all"] else wanted
        _run_studies(requests, folder, results, jobs, _names(gpus) or (), data, execution, only_plan, record)


def _names_and_execution(arguments: Sequence[str]) -> tuple[list[str], Settings]:
    """The names among the arguments, and the settings, which may only say how runs are executed."""
    from fedspecial.config import parse_settings
    from fedspecial.runs.api import execution_settings

    pairs = parse_settings([argument for argument in arguments if "=" in argument])
    execution = execution_settings(pairs, "the runs of a study keep their settings")
    return [argument for argument in arguments if "=" not in argument], execution


def _check_not_for_tune_all(**options: str | None) -> None:
    for option, value in options.items():
        if value is not None:
            why = "" if option == "gpus" else "; its seeds are fixed, and benchmarks follow its name"
            raise InputError(f"{option}={value}: not for tune-all{why}")


def _run_studies(
    requests: Sequence[StudyRequest],
    folder: Path,
    results: Path,
    jobs: int | None,
    gpus: Sequence[str],
    data: str | None,
    execution: Settings,
    only_plan: bool,
    record: bool,
) -> None:
    from fedspecial.paper.planning import plan
    from fedspecial.paper.rates import record_rates
    from fedspecial.paper.requests import add_requests
    from fedspecial.paper.run_records import read_records, write_record, write_records
    from fedspecial.paper.throughput import read_throughput
    from fedspecial.paper.tuning_records import read_tuning

    tuning, throughput = read_tuning(results), read_throughput(folder)
    planned = plan(requests, folder, data, tuning, throughput=throughput)
    for line in (*(f"skipped: {line}" for line in planned.skipped), *planned.untuned):
        err.print(line, markup=False)
    recorded = read_records(results)
    device = {"device": "cuda"} if gpus else {}
    needed = [
        (replace(job, settings={**job.settings, **device, **execution}), seconds)
        for job, seconds in zip(planned.jobs, planned.seconds, strict=True)
        if job.folder.exists() or recorded.find(job) is None
    ]
    if count := len(planned.jobs) - len(needed):
        out.print(f"{count} runs have a record in {results / 'runs'} and are not repeated", markup=False)
    runs, seconds = [job for job, _ in needed], [cost for _, cost in needed]
    if only_plan:
        _print_studies(requests, runs, folder, data, tuning)
        if planned.unknown:
            err.print(f"not measured (fedspecial study calibrate): {', '.join(planned.unknown)}", markup=False)
        print_plan(runs, seconds, known=not planned.unknown, gpus=len(gpus))
        return
    add_requests(folder, requests)
    _run_rates(planned, folder, results)
    written: list[Path] = []

    def done(job: Job) -> None:
        """Each record is written when its run has finished, so that a study that is killed loses none."""
        path = write_record(job, results) if record else None
        written.extend([] if path is None else [path])

    try:
        run_jobs(runs, seconds, jobs, gpus, done)
    finally:
        if record:
            record_rates(planned.rates, folder, results)
            written += write_records(planned.jobs, results)
            out.print(f"{len(written)} new records in {results / 'runs'}", markup=False)
    out.print(f"write the report with: fedspecial report {folder}", markup=False)


def _print_studies(
    requests: Sequence[StudyRequest], needed: Sequence[Job], folder: Path, data: str | None, tuning: Tuning
) -> None:
    """How many runs each study needs, and how many of them no study before it in the list has."""
    from fedspecial.paper.planning import plan

    absent: Absent = {}
    left = {job.folder for job in needed}
    for request in requests if len(requests) > 1 else ():
        own = {job.folder for job in plan([request], folder, data, tuning, absent).jobs}
        out.print(f"{request.study}: {len(own)} runs, {len(own & left)} to be added", markup=False)
        left -= own


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR")] = Path("studies"),
    claims: Annotated[
        Path | None, typer.Option("--claims", help="File for the list of claims (default: DIR/REPRODUCIBILITY.md).")
    ] = None,
    results: ResultsOption = Path("results"),
) -> None:
    """Write the report of all studies in DIR: index.html, tables, figures, and the list of claims.

    Example:  fedspecial report studies
    """
    from fedspecial.paper.page import counts_lines
    from fedspecial.paper.report import write_report

    with one_line_errors():
        target = claims or folder / "REPRODUCIBILITY.md"
        sections = write_report(folder, target, results)
        for section in sections:
            found = section.results
            line = f"{found.study.name} ({found.request.scale}): {found.finished} of {found.wanted} runs"
            out.print(line, markup=False)
        for line in counts_lines(sections):
            out.print(line, markup=False)
        out.print(f"page: {folder / 'index.html'}   claims: {target}", markup=False)


def _list(scale: str, data: str | None, results: Path) -> None:
    """Print every study: its source in the paper, what it varies, and its cost at this scale."""
    from fedspecial.paper.grid import StudyRequest
    from fedspecial.paper.planning import plan
    from fedspecial.paper.registry import STUDIES
    from fedspecial.paper.tuning_records import read_tuning
    from fedspecial.runs.cores import available_cores

    width = max(len(study.name) for study in STUDIES)
    absent: Absent = {}
    tuning = read_tuning(results)
    skipped: dict[str, None] = {}
    for study in STUDIES:
        cost = f"not available at scale {scale}"
        if scale in study.scales:
            planned = plan([StudyRequest(study.name, scale)], Path("studies"), data, tuning, absent)
            known = not planned.unknown
            minutes = f", about {duration(sum(planned.seconds) / available_cores())}" if known and planned.jobs else ""
            cost = f"{len(planned.jobs)} runs{minutes}"
            skipped |= dict.fromkeys(planned.skipped)
        out.print(f"{study.name:<{width}}  {study.title}: {study.paper}", markup=False)
        out.print(f"{'':<{width}}  varies: {study.varies}; {cost}", markup=False)
    for line in skipped:
        out.print(f"skipped: {line}", markup=False)
    out.print(
        f"Times are for scale {scale}, five seeds and {available_cores()} cores, each study on its own; "
        "studies share runs.",
        markup=False,
    )


def _run_rates(planned: StudyPlan, folder: Path, results: Path) -> None:
    from fedspecial.paper.rates import THEORY, read_rates, run_rate

    recorded = read_rates(planned.rates, results / THEORY)
    for sweep in planned.rates:
        if sweep not in recorded and run_rate(sweep, folder / THEORY):
            out.print(f"theory: finished the sweep over {sweep}", markup=False)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))
