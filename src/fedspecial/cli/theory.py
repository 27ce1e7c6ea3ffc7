"""`fedspecial theory`: bounds for SPECIAL, their conditions, and certificates of finished runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspecial.cli.console import one_line_errors, out
from fedspecial.config import read_settings

if TYPE_CHECKING:
    from fedspecial.theory.bound_table import BoundValue
    from fedspecial.theory.conditions import Condition, ConditionReport
    from fedspecial.theory.inputs import TheoryInputs
    from fedspecial.theory.simulation.curves import RateStudy

app = typer.Typer(
    help="Bounds for SPECIAL: check, compute and study them, and compare runs with them.",
    no_args_is_help=True,
)

Pairs = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of a run and constants of the problem.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
TITLES = {
    "paper_bkt": "Backward transfer, as printed (Theorem 1)",
    "paper_convergence": "Task-uniform convergence, as printed (Theorem 2)",
    "paper_rate": "Rate, as printed (Corollary 1)",
    "bkt": "Backward transfer, corrected (BKT-S)",
    "surrogate": "Convergence to the surrogate (Theorem S)",
    "contraction": "Contraction of the noise-free round",
}
VERDICTS = {True: "all conditions hold", False: "some conditions are not met", None: "unknown"}
STATUS_NAMES = {True: "holds", False: "fails", None: "unknown"}


@app.command()
def check(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.yaml | RUN_DIR", help="A configuration file, or the directory of a run.")
    ],
    pairs: Pairs = None,
    as_json: Json = False,
) -> None:
    """Check the conditions of each statement: print both sides, whether the condition holds, and what to change.

    Example:  fedspecial theory check runs/a/config.yaml task=2 smoothness=4 grad_bound=2
    """
    from fedspecial.theory import conditions
    from fedspecial.theory.inputs import parse_overrides, read_inputs

    with one_line_errors(ValueError):
        inputs = read_inputs(_read(config) | parse_overrides(pairs or []))
        reports = [
            conditions.check_conditions(inputs.cfg, inputs.consts, which, missing=inputs.missing)
            for which in conditions.STATEMENTS
        ]
    if as_json:
        _print(json.dumps([report.to_dict() for report in reports], indent=2))
        return
    _print_notes(inputs)
    for report in reports:
        _print_report(report)


@app.command()
def bounds(pairs: Pairs = None, as_json: Json = False) -> None:
    """Compute all bounds for given settings and constants, with every term of Psi.

    Example:  fedspecial theory bounds lam=0.25 server_lr=1/i client_lr=0.001 local_steps=5 rounds=9 task=4 grad_bound=2
    """
    from fedspecial.theory.bound_table import all_bounds
    from fedspecial.theory.inputs import KEYS, parse_overrides, read_inputs

    with one_line_errors(ValueError):
        if not pairs:
            raise ValueError(f"give at least one key=value argument; the keys are {', '.join(KEYS)}")
        inputs = read_inputs(parse_overrides(pairs))
        rows = all_bounds(inputs.cfg, inputs.consts, inputs.missing)
    if as_json:
        _print(json.dumps([row.to_dict() for row in rows], indent=2))
        return
    _print_notes(inputs)
    _print_values(rows)


@app.command()
def study(
    name: Annotated[str, typer.Argument(metavar="lam|rounds|clients|epochs|rate", help="The quantity that is varied.")],
    folder: Annotated[Path, typer.Option("--out", help="Directory for the table and the plot.")] = Path("studies"),
    problem: Annotated[str, typer.Option(help="The loss: pseudo_huber, welsch or logistic.")] = "pseudo_huber",
    repeats: Annotated[int | None, typer.Option(help="Number of replicates per point.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the problem and the noise.")] = 0,
) -> None:
    """Run a sweep on a problem with known constants and compare the measured slopes with the theory.

    Example:  fedspecial theory study lam --out studies
    """
    from fedspecial.errors import did_you_mean
    from fedspecial.theory.plots import plot_study
    from fedspecial.theory.simulation.rate_studies import SWEEPS, rate_study

    with one_line_errors(ValueError):
        if name not in SWEEPS:
            raise ValueError(f"study {name}: expected one of {', '.join(SWEEPS)}{did_you_mean(name, SWEEPS)}")
        _writable(folder)
        with _progress(f"study {name}") as tick:
            result = rate_study(name, problem=problem, repeats=repeats, seed=seed, progress=tick)
        plot = plot_study(result, folder / f"theory-{name}.png")
    _write_table(result, folder)
    _print_study(result)
    _print(f"table and plot: {plot.with_suffix('.csv')}, {plot.with_suffix('.json')}, {plot}")


@app.command()
def certify(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run.")],
    pairs: Pairs = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the drift and its bounds to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Compare a run's distance to the anchor, round by round, with the bounds on it.

    Uses the constants given here, otherwise those that the run estimated (estimate=true), otherwise none.
    Exits with 1 if a bound that needs no assumption is violated, because this means a bug in the run.

    Example:  fedspecial theory certify runs/a grad_bound=2 --plot drift.png
    """
    from fedspecial.theory.certificates.run import certify_run
    from fedspecial.theory.certificates.task import certify as certify_events
    from fedspecial.theory.inputs import parse_overrides, read_inputs
    from fedspecial.theory.plots import plot_drift

    with one_line_errors(ValueError):
        given = parse_overrides(pairs or [])
        inputs = read_inputs(given)
        both = "grad_bound" not in inputs.missing and "smoothness" not in inputs.missing
        bound = None if "grad_bound" in inputs.missing else inputs.consts.grad_bound
        if given:
            tasks = certify_events(_events(folder), grad_bound=bound, consts=inputs.consts if both else None)
        else:
            tasks = certify_run(list(_events(folder)))
        if not tasks:
            raise ValueError(f"{folder}: events.jsonl contains no finished rounds")
    if as_json:
        _print(json.dumps([task.to_dict() for task in tasks], indent=2))
    else:
        for task in tasks:
            _print(task.table())
            for name, estimate in task.constants.items():
                _print(f"  {name}: {estimate.value:.4g} ({estimate.kind}, {estimate.n} observations; {estimate.note})")
            for violation in task.violations:
                _print(f"  {violation.message}")
    if plot is not None:
        with one_line_errors(ValueError):
            plot_drift(tasks, plot)
    if any(task.status == "bug in the run" for task in tasks):
        raise typer.Exit(1)


def _read(path: Path) -> dict[str, Any]:
    """A flat mapping from a YAML file. A nested setting is used if the top level has none of that name."""
    content = read_settings(path / "config.yaml" if path.is_dir() else path)
    nested: dict[str, Any] = {}
    for value in content.values():
        nested |= value if isinstance(value, dict) else {}
    return nested | content


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    file = folder / "events.jsonl"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror or error}") from None
    for number, line in enumerate(lines, start=1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            if number == len(lines):  # the run was killed while writing this line
                return
            raise ValueError(f"{file}, line {number}: not JSON") from None


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: {error.strerror or error}") from None


def _write_table(result: RateStudy, folder: Path) -> None:
    target = folder / f"theory-{result.sweep}"
    with target.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["curve", "x", "value", "stderr", "exact"])
        writer.writerows(result.rows())
    target.with_suffix(".json").write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")


def _print_notes(inputs: TheoryInputs) -> None:
    for note in inputs.notes:
        _print(f"note: {note}")


def _print_report(report: ConditionReport) -> None:
    verdict = "does not hold" if report.which == "paper_rate" else VERDICTS[report.ok]
    _print(f"\n{TITLES[report.which]}: {verdict}")
    _print(f"  {report.note}")
    for row in report.rows:
        _print(f"  {STATUS_NAMES[row.ok]:<8}{row.name}{_sides(row)}")
    limits = [f"{setting} {_SIDE[setting]} {value:.6g}" for setting, value in report.suggest().items()]
    if limits:
        _print(f"  limits (each with the other settings unchanged): {', '.join(limits)}")


_SIDE = {"client_lr": "at most", "server_lr": "at most", "lam": "at least"}


def _sides(row: Condition) -> str:
    from fedspecial.theory.inputs import setting_name

    note = row.note
    if note.startswith("needs "):
        names = [setting_name(name) for name in note.removeprefix("needs ").split(", ")]
        note = f"needs {', '.join(names)}"
    if row.lhs is None or row.rhs is None:
        return f"   ({note})"
    return f"   {row.lhs:.6g} vs. {row.rhs:.6g}" + (f"   ({note})" if note else "")


def _print_values(rows: list[BoundValue]) -> None:
    from fedspecial.theory.inputs import setting_name

    width = max(len(row.name) for row in rows)
    group = ""
    for row in rows:
        if row.group != group:
            group = row.group
            _print(f"\n{group}")
        note = row.note
        if note.startswith("needs "):
            note = "needs " + ", ".join(setting_name(name) for name in note.removeprefix("needs ").split(", "))
        value = "unknown" if row.value is None else f"{row.value:.10g}"
        _print(f"  {row.name:<{width}}  {value:<16}  {note}".rstrip())


def _print_study(result: RateStudy) -> None:
    _print(f"{result.sweep} on {result.problem}: {result.note}")
    for curve in result.curves:
        if curve.slope is not None and curve.theory is not None:
            error = f" ± {curve.stderr:.3f}" if curve.stderr is not None else ""
            _print(f"  {curve.name}: slope {curve.slope:.3f}{error}, theory {curve.theory:g}")
        if curve.exact is not None:
            ratios = [point.value / exact for point, exact in zip(curve.points, curve.exact, strict=True)]
            _print(f"  {curve.name}: measured / closed form {min(ratios):.3f} to {max(ratios):.3f}")


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, plain lines otherwise."""
    if not out.is_terminal:
        yield lambda done, total: _print(f"{title}: {done} of {total}")
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        line = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total)


def _print(line: str) -> None:
    out.print(line, markup=False)
