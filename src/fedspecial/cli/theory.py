"""`fedspecial theory`: what the theory says about a setting, and whether a run kept to it."""

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
    from fedspecial.theory.conditions import Condition, ConditionReport
    from fedspecial.theory.curves import RateStudy
    from fedspecial.theory.overview import Value
    from fedspecial.theory.settings import Settings

app = typer.Typer(help="Bounds for SPECIAL: check, compute, study, certify.", no_args_is_help=True)

Pairs = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings and constants.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TITLES = {
    "paper_bkt": "Backward transfer, as printed (Theorem 1)",
    "paper_convergence": "Task-uniform convergence, as printed (Theorem 2)",
    "paper_rate": "Rate, as printed (Corollary 1)",
    "bkt": "Backward transfer, corrected (BKT-S)",
    "surrogate": "Convergence to the surrogate (Theorem S)",
    "contraction": "Contraction of the noise-free round",
}
VERDICTS = {True: "all conditions hold", False: "its conditions are not met", None: "unknown"}
WORDS_OF = {True: "holds", False: "fails", None: "unknown"}


@app.command()
def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml | RUN_DIR", help="Settings; a run's will do.")],
    pairs: Pairs = None,
    as_json: Json = False,
) -> None:
    """Each statement's conditions one by one: both sides, whether it holds, and what to change.

    Example:  fedspecial theory check runs/a/config.yaml task=2 smoothness=4 grad_bound=2
    """
    from fedspecial.theory import conditions
    from fedspecial.theory.settings import parse_overrides, settle

    with one_line_errors(ValueError):
        settings = settle(_read(config) | parse_overrides(pairs or []))
        reports = [
            conditions.check(settings.cfg, settings.consts, which, missing=settings.missing)
            for which in conditions.STATEMENTS
        ]
    if as_json:
        _say(json.dumps([report.to_dict() for report in reports], indent=2))
        return
    _notes(settings)
    for report in reports:
        _print_report(report)


@app.command()
def bounds(pairs: Pairs = None, as_json: Json = False) -> None:
    """The values of all bounds for given settings and constants, with every term of Psi.

    Example:  fedspecial theory bounds clients=8 clients_per_round=4 local_steps=5 rounds=20 task=4
    server_lr=1/i client_lr=0.001 lam=0.25 grad_bound=2 smoothness=4
    """
    from fedspecial.theory.overview import all_bounds
    from fedspecial.theory.settings import WORDS, parse_overrides, settle

    with one_line_errors(ValueError):
        if not pairs:
            raise ValueError(f"key=value words are needed; the keys are {', '.join(WORDS)}")
        settings = settle(parse_overrides(pairs))
        rows = all_bounds(settings.cfg, settings.consts, settings.missing)
    if as_json:
        _say(json.dumps([row.to_dict() for row in rows], indent=2))
        return
    _notes(settings)
    _print_values(rows)


@app.command()
def study(
    name: Annotated[str, typer.Argument(metavar="lam|rounds|clients|epochs|rate")],
    folder: Annotated[Path, typer.Option("--out", help="Where table and plot go.")] = Path("studies"),
    problem: Annotated[str, typer.Option(help="pseudo_huber, welsch or logistic.")] = "pseudo_huber",
    repeats: Annotated[int | None, typer.Option(help="Replicates per point.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of problem and noise.")] = 0,
) -> None:
    """A sweep on a problem whose constants are known: the measured slope beside the supported one.

    Example:  fedspecial theory study lam --out studies
    """
    from fedspecial.errors import did_you_mean
    from fedspecial.theory.figures import plot_study
    from fedspecial.theory.studies import SWEEPS, rate_study

    with one_line_errors(ValueError):
        if name not in SWEEPS:
            raise ValueError(f"study {name}: expected one of {', '.join(SWEEPS)}{did_you_mean(name, SWEEPS)}")
        _writable(folder)
        with _progress(f"study {name}") as tick:
            result = rate_study(name, problem=problem, repeats=repeats, seed=seed, progress=tick)
        plot = plot_study(result, folder / f"theory-{name}.png")
    _write_table(result, folder)
    _print_study(result)
    _say(f"table and plot: {plot.with_suffix('.csv')}, {plot.with_suffix('.json')}, {plot}")


@app.command()
def certify(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    pairs: Pairs = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the drift under its caps into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Read a run's events: its distance to the anchor, round by round, under the caps that must hold.

    Constants are those given here, or else those the run estimated (estimate=true), or else none.
    Exits 1 if a cap that needs no assumption is broken: that is a bug in the run.

    Example:  fedspecial theory certify runs/a grad_bound=2 --plot drift.png
    """
    from fedspecial.theory.certificate import certify as read
    from fedspecial.theory.estimated import certify_run
    from fedspecial.theory.figures import plot_drift
    from fedspecial.theory.settings import parse_overrides, settle

    with one_line_errors(ValueError):
        given = parse_overrides(pairs or [])
        settings = settle(given)
        both = "grad_bound" not in settings.missing and "smoothness" not in settings.missing
        bound = None if "grad_bound" in settings.missing else settings.consts.grad_bound
        if given:
            tasks = read(_events(folder), grad_bound=bound, consts=settings.consts if both else None)
        else:
            tasks = certify_run(list(_events(folder)))
        if not tasks:
            raise ValueError(f"{folder}: there are no finished rounds in events.jsonl")
    if as_json:
        _say(json.dumps([task.to_dict() for task in tasks], indent=2))
    else:
        for task in tasks:
            _say(task.table())
            for name, estimate in task.constants.items():
                _say(f"  {name}: {estimate.value:.4g} ({estimate.kind}, {estimate.n} observations; {estimate.note})")
            for violation in task.violations:
                _say(f"  {violation.message}")
    if plot is not None:
        with one_line_errors(ValueError):
            plot_drift(tasks, plot)
    if any(task.status == "bug in the run" for task in tasks):
        raise typer.Exit(1)


def _read(path: Path) -> dict[str, Any]:
    """A flat mapping from a YAML file; words one level down count where the top has none of that name."""
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
            if number == len(lines):  # a run that was killed while writing
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


def _notes(settings: Settings) -> None:
    for note in settings.notes:
        _say(f"note: {note}")


def _print_report(report: ConditionReport) -> None:
    verdict = "does not hold" if report.which == "paper_rate" else VERDICTS[report.ok]
    _say(f"\n{TITLES[report.which]}: {verdict}")
    _say(f"  {report.note}")
    for row in report.rows:
        _say(f"  {WORDS_OF[row.ok]:<8}{row.name}{_sides(row)}")
    limits = [f"{knob} {_SIDE[knob]} {value:.6g}" for knob, value in report.suggest().items()]
    if limits:
        _say(f"  limits, each with the rest as it is: {', '.join(limits)}")


_SIDE = {"client_lr": "at most", "server_lr": "at most", "lam": "at least"}


def _sides(row: Condition) -> str:
    from fedspecial.theory.settings import user_name

    note = row.note
    if note.startswith("needs "):
        names = [user_name(name) for name in note.removeprefix("needs ").split(", ")]
        note = f"needs {', '.join(names)}"
    if row.lhs is None or row.rhs is None:
        return f"   ({note})"
    return f"   {row.lhs:.6g} against {row.rhs:.6g}" + (f"   ({note})" if note else "")


def _print_values(rows: list[Value]) -> None:
    from fedspecial.theory.settings import user_name

    width = max(len(row.name) for row in rows)
    group = ""
    for row in rows:
        if row.group != group:
            group = row.group
            _say(f"\n{group}")
        note = row.note
        if note.startswith("needs "):
            note = "needs " + ", ".join(user_name(name) for name in note.removeprefix("needs ").split(", "))
        value = "unknown" if row.value is None else f"{row.value:.10g}"
        _say(f"  {row.name:<{width}}  {value:<16}  {note}".rstrip())


def _print_study(result: RateStudy) -> None:
    _say(f"{result.sweep} on {result.problem}: {result.note}")
    for curve in result.curves:
        if curve.slope is not None and curve.theory is not None:
            error = f" ± {curve.stderr:.3f}" if curve.stderr is not None else ""
            _say(f"  {curve.name}: slope {curve.slope:.3f}{error}, supported {curve.theory:g}")
        if curve.exact is not None:
            ratios = [point.value / exact for point, exact in zip(curve.points, curve.exact, strict=True)]
            _say(f"  {curve.name}: measured / closed form {min(ratios):.3f} to {max(ratios):.3f}")


@contextmanager
def _progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, plain lines elsewhere."""
    if not out.is_terminal:
        yield lambda done, total: _say(f"{title}: {done} of {total}")
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        line = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total)


def _say(line: str) -> None:
    out.print(line, markup=False)
