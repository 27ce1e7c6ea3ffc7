"""`fedspecial study`, `report`, `tune`: the paper's tables and figures, run and shown beside the printed ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspecial.cli.console import err, one_line_errors, out, seeds_of
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.config import Settings
    from fedspecial.paper.running import Absent, Plan
    from fedspecial.report.comparison import Spread
    from fedspecial.runs.jobs import Job, TimeEstimate
    from fedspecial.runs.tune import Curve

DataOption = Annotated[str | None, typer.Option("--data", help="Folder with real data (or FEDSPECIAL_DATA).")]
JobsOption = Annotated[int | None, typer.Option(help="Runs side by side; default: as many as there are cores.")]
SCALE_NAMES = ("paper", "cpu", "tiny")


def study(
    names: Annotated[list[str], typer.Argument(metavar="list | NAME...")],
    scale: Annotated[str, typer.Option(help="paper, cpu or tiny.")] = "cpu",
    seeds: Annotated[str, typer.Option(help="Numbers separated by commas.")] = "25,225,2025",
    benchmarks: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where all studies and their runs are.")] = Path("studies"),
    jobs: JobsOption = None,
    data: DataOption = None,
) -> None:
    """Run what is missing of the paper's tables and figures; runs are shared between studies.

    Example:  fedspecial study main per-task --scale tiny
    """
    from fedspecial.paper.grid import Ask
    from fedspecial.paper.requests import remember
    from fedspecial.paper.running import plan

    with one_line_errors():
        if scale not in SCALE_NAMES:
            raise InputError(f"scale={scale}: expected {', '.join(SCALE_NAMES)}")
        if names == ["list"]:
            _list(scale, data)
            return
        _check_jobs(jobs)
        numbers = seeds_of(seeds)
        asks = [Ask(name, scale, numbers, _names(benchmarks), _names(methods)) for name in names]
        planned = plan(asks, folder, data)
        remember(folder, asks)
        for line in planned.left_out:
            err.print(f"left out: {line}", markup=False)
        _run_rates(planned, folder)
        _run_jobs(planned.jobs, planned.seconds, jobs)
        out.print(f"see them with: fedspecial report {folder}", markup=False)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR")] = Path("studies"),
    claims: Annotated[
        Path | None, typer.Option("--claims", help="Where the list of claims goes; DIR/REPRODUCIBILITY.md without it.")
    ] = None,
) -> None:
    """Write DIR/index.html, one page with every study beside the printed numbers; and tables, figures, claims.

    Example:  fedspecial report studies
    """
    from fedspecial.paper.page import claims_of
    from fedspecial.paper.report import write_report

    with one_line_errors():
        target = claims or folder / "REPRODUCIBILITY.md"
        sections = write_report(folder, target)
        for section in sections:
            evidence = section.evidence
            line = f"{evidence.study.name} ({evidence.ask.scale}): {evidence.finished} of {evidence.wanted} runs"
            out.print(line, markup=False)
        counted = ", ".join(f"{count} {kind}" for kind, count in claims_of(sections).items())
        out.print(f"claims: {counted}", markup=False)
        out.print(f"page: {folder / 'index.html'}   claims: {target}", markup=False)


def tune(
    settings: Annotated[list[str], typer.Argument(metavar="BENCHMARK [KEY=VALUE]...")],
    method: Annotated[str, typer.Option(help="special or special-c.")] = "special",
    seeds: Annotated[str, typer.Option(help="Numbers separated by commas.")] = "25",
    holdout: Annotated[float, typer.Option(help="Share of the training samples to validate on.")] = 0.2,
    folder: Annotated[Path | None, typer.Option("--out", help="Where runs and preset go.")] = None,
    jobs: JobsOption = None,
    data: DataOption = None,
) -> None:
    """Choose λ by the paper's two-stage search on held-out training data, and write it down as a preset.

    Example:  fedspecial tune digits-shift rounds=4 --seeds 25,225
    """
    from fedspecial.runs.tune import COARSE, Search, best, fine, read_curve, write_preset

    with one_line_errors():
        _check_jobs(jobs)
        given = _given(settings, method, data)
        search = Search(given, seeds_of(seeds), holdout, folder or Path("tune") / str(given["benchmark"]))
        curve: dict[float, Spread] = {}
        for stage in ("coarse", "fine"):
            values = COARSE if stage == "coarse" else fine(curve)
            out.print(f"{stage}: λ = {', '.join(f'{x:g}' for x in values)}", markup=False)
            runs = search.runs(values)
            _run_jobs(runs, [1.0] * len(runs), jobs)
            curve |= read_curve(search, values)
        path = write_preset(search, curve)
        _print_curve(curve, best(curve))
        out.print(f"λ = {best(curve):g}; run it with: fedspecial run {path}", markup=False)


def _given(settings: list[str], method: str, data: str | None) -> Settings:
    from fedspecial.config import parse_pairs

    if "=" in settings[0]:
        raise InputError(f"'{settings[0]}': a benchmark comes first")
    if method not in ("special", "special-c"):
        raise InputError(f"method={method}: only special and special-c have a λ to choose")
    pairs = parse_pairs(settings[1:])
    for word in ("benchmark", "method"):
        if word in pairs:
            raise InputError(f"{word}={pairs[word]}: in a search this is said with its own argument")
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
    """Every study: what it is in the paper, what it varies, and what it costs at this scale."""
    from fedspecial.paper.grid import Ask
    from fedspecial.paper.registry import STUDIES
    from fedspecial.paper.running import plan
    from fedspecial.runs.jobs import cores

    width = max(len(study.name) for study in STUDIES)
    absent: Absent = {}
    left_out: dict[str, None] = {}
    for study in STUDIES:
        cost = f"not at scale {scale}"
        if scale in study.scales:
            planned = plan([Ask(study.name, scale)], Path("studies"), data, absent)
            known = scale != "paper"
            minutes = f", about {_duration(sum(planned.seconds) / cores(1))}" if known and planned.jobs else ""
            cost = f"{len(planned.jobs)} runs{minutes}"
            left_out |= dict.fromkeys(planned.left_out)
        out.print(f"{study.name:<{width}}  {study.title}: {study.paper}", markup=False)
        out.print(f"{'':<{width}}  varies {study.varies}; {cost}", markup=False)
    for line in left_out:
        out.print(f"left out: {line}", markup=False)
    out.print(
        f"Times: scale {scale}, three seeds, {cores(1)} cores, each study alone; shared runs are run once.",
        markup=False,
    )


def _run_rates(planned: Plan, folder: Path) -> None:
    from fedspecial.paper.report import THEORY
    from fedspecial.paper.theorems import run_rate

    for sweep in planned.rates:
        if run_rate(sweep, folder / THEORY):
            out.print(f"theory: the sweep over {sweep} is done", markup=False)


def _run_jobs(jobs: Sequence[Job], seconds: Sequence[float], parallel: int | None) -> None:
    """Run what is missing, showing how far it is; a run that fails is told and the others go on."""
    from fedspecial.runs.jobs import TimeEstimate, cores, run_missing

    if not jobs:
        out.print("nothing to run", markup=False)
        return
    side_by_side = parallel or cores(max(int(job.settings.get("threads", 1)) for job in jobs))
    estimate = TimeEstimate(jobs, seconds, side_by_side)
    already = len(estimate.update()[0])
    out.print(f"{len(jobs)} runs, {already} finished before, {side_by_side} side by side", markup=False)
    failures: list[str] = []

    def failed(job: Job, error: Exception) -> None:
        failures.append(f"{job.folder.name}: {' '.join(str(error).split()) or type(error).__name__}")
        err.print(f"failed: {failures[-1]}", markup=False)

    try:
        with _showing(estimate) as tick:
            run_missing(jobs, side_by_side, tick, failed)
            tick()
    except KeyboardInterrupt:
        err.print("\nstopped; the same command goes on", markup=False)
        sys.exit(130)
    if failures:
        raise InputError(f"{len(failures)} of {len(jobs)} runs failed, the first: {failures[0]}")


@contextmanager
def _showing(estimate: TimeEstimate) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, elsewhere a line for each finished run; both with the time left."""
    from fedspecial.runs import directory as directory

    def told(job: Job, left: float) -> str:
        result = directory.finished(job.folder)
        bwt = "" if result is None or result.bwt is None else f"  BWT {100 * result.bwt:6.2f}"
        acc = "" if result is None else f"  ACC {100 * result.acc:5.2f}{bwt}"
        return f"[{len(estimate.finished)}/{len(estimate.jobs)}] {job.folder.name}{acc}  {_duration(left)} left"

    if not out.is_terminal:

        def say() -> None:
            new, _, left = estimate.update()
            for job in new:
                out.print(told(job, left), markup=False)

        yield say
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
                out.print(told(job, left), markup=False)
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
