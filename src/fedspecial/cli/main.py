"""The command line: ``fedspecial run``, ``resume``, ``compare``, ``evaluate``, ``study``, ``report``, ``data``, …"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from fedspecial import config as settings_of
from fedspecial.cli import data, flower, study, theory
from fedspecial.cli.console import err, fail, one_line_errors, out, seeds_of
from fedspecial.config import Config, Settings, parse_pairs, read_settings
from fedspecial.errors import InputError
from fedspecial.runs import directory as directory

if TYPE_CHECKING:
    from fedspecial.report.result import Result
    from fedspecial.runs.jobs import Job

app = typer.Typer(
    name="fedspecial",
    help="Let a federation learn one domain after another, and see what was gained and what was lost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(data.app, name="data")
app.add_typer(theory.app, name="theory")
app.add_typer(flower.app, name="flower")

SettingsArgument = Annotated[list[str] | None, typer.Argument(metavar="[BENCHMARK | CONFIG.yaml] [KEY=VALUE]...")]
_OPTIONS = {"method": "--methods", "seed": "--seeds", "out": "--out"}
DataOption = Annotated[str | None, typer.Option("--data", help="Folder with real data (or FEDSPECIAL_DATA).")]


@app.command()
def run(settings: SettingsArgument = None, data: DataOption = None) -> None:
    """Run one federation. Without arguments: SPECIAL on the embedded benchmark.

    Example:  fedspecial run digits-shift method=special lam=0.25 seed=25 out=runs/a
    """
    with one_line_errors():
        given = _given(settings or [], data)
        merged = settings_of.merge_settings(given)
        with directory.created(merged) as folder:
            _follow(folder)


@app.command()
def resume(folder: Annotated[Path, typer.Argument(metavar="RUN_DIR")]) -> None:
    """Go on where a run stopped, to the same result bit for bit.

    Example:  fedspecial resume runs/a
    """
    with one_line_errors():
        if directory.finished(folder) is not None:
            out.print(f"{folder}: this run is finished; nothing to do", markup=False)
        else:
            _follow(folder)


@app.command()
def compare(
    settings: Annotated[list[str], typer.Argument(metavar="BENCHMARK [KEY=VALUE]...")],
    methods: Annotated[str, typer.Option(help="Names separated by commas, or 'all'.")] = "special,fedavg",
    seeds: Annotated[str, typer.Option(help="Numbers separated by commas.")] = "25,225,2025",
    jobs: Annotated[int | None, typer.Option(help="Runs side by side; default: as many as there are cores.")] = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Where the runs go; finished ones are reused.")
    ] = None,
    matrices: Annotated[bool, typer.Option("--matrices", help="Print each method's accuracy matrix too.")] = False,
    data: DataOption = None,
) -> None:
    """Run several methods and seeds on the same federation and print mean ± standard deviation.

    Example:  fedspecial compare digits-shift --methods special,fedavg --seeds 25,225,2025
    """
    from fedspecial.runs import compare as comparison

    with one_line_errors():
        for word in settings:
            if (key := word.partition("=")[0]) in _OPTIONS and "=" in word:
                raise InputError(f"{word}: in a comparison this is said with {_OPTIONS[key]}")
        given = _given(settings, data)
        benchmark = str(given.pop("benchmark", Config().benchmark))
        names = _all_for(benchmark) if methods == "all" else [name.strip() for name in methods.split(",")]
        folder = out_folder or directory.next_number(f"compare-{benchmark}")
        planned = comparison.plan(benchmark, names, seeds_of(seeds), given, folder)
        results = _run_planned(planned, jobs)
        _print_comparison(benchmark, folder, results, matrices)


def _all_for(benchmark: str) -> list[str]:
    """Every method that works on the benchmark's data; the others are named, not left out in silence."""
    from fedspecial import methods
    from fedspecial.data import catalogue

    kind = catalogue.entry(str(settings_of.preset_settings(benchmark).get("benchmark", benchmark))).kind
    if kind is None:
        raise InputError(f"--methods all: the kind of data of '{benchmark}' is not known; name the methods")
    names = methods.names_for(kind)
    if others := [name for name in methods.names() if name not in names]:
        out.print(f"left out, since they do not work on {kind} data: {', '.join(others)}", markup=False)
    return names


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    settings: Annotated[list[str] | None, typer.Argument(metavar="[BENCHMARK] [KEY=VALUE]...")] = None,
    data: DataOption = None,
) -> None:
    """Test a finished model on a benchmark's domains, by default those it learned.

    Example:  fedspecial evaluate runs/a digits-shift domains=photo
    """
    with one_line_errors():
        benchmark = None
        own = directory.settings(folder)
        given = _given(settings or [], data)
        if given:
            base = own if "benchmark" not in given else {}
            merged = settings_of.merge_settings(
                {**{k: v for k, v in base.items() if k in Config.model_fields}, **given}
            )
            from fedspecial.runs.build import load_benchmark

            benchmark = load_benchmark(Config(**{k: v for k, v in merged.items() if k in Config.model_fields}))
        from fedspecial.runs.evaluate import evaluate as test

        for name, accuracy in test(folder, benchmark).items():
            out.print(f"{name}: {100 * accuracy:.2f} %", markup=False)


@app.command("list")
def list_(what: Annotated[str, typer.Argument(metavar="methods|benchmarks|models")]) -> None:
    """Show the names that can be used.

    Example:  fedspecial list methods
    """
    with one_line_errors():
        if what == "methods":
            from fedspecial import methods

            lines = {name: methods.describe(name) for name in methods.names()}
        elif what == "benchmarks":
            from fedspecial.data import catalogue

            lines = {
                name: catalogue.entry(settings_of.preset_settings(name)["benchmark"]).title
                for name in settings_of.preset_names()
            }
        elif what == "models":
            from fedspecial import models

            lines = {name: models.describe(name) for name in models.names()}
        else:
            raise InputError(f"list '{what}': expected methods, benchmarks or models")
        width = max(map(len, lines))
        for name, text in lines.items():
            out.print(f"{name:<{width}}  {text}", markup=False)


for command in (study.study, study.report, study.tune):
    app.command()(command)


def _given(settings: list[str], data: str | None) -> Settings:
    """Settings of the command line: an optional benchmark or file first, then key=value pairs."""
    given: Settings = {}
    if settings and "=" not in settings[0]:
        first, settings = settings[0], settings[1:]
        if first.endswith((".yaml", ".yml")):
            given = read_settings(Path(first))
            given.pop("about", None)
            given.pop("out", None)
        else:
            given["benchmark"] = first
    pairs = parse_pairs(settings)
    if "benchmark" in pairs and "benchmark" in given:
        raise InputError(f"benchmark: it is given twice ({given['benchmark']!r} and {pairs['benchmark']!r})")
    given |= pairs
    if data is not None:
        given["data"] = data
    return given


def _follow(folder: Path) -> None:
    """Run what stands in a run directory, showing progress, and print its result."""
    from fedspecial.cli.progress import Watch
    from fedspecial.cli.tables import matrix_table, result_line
    from fedspecial.runs.api import resume as go_on

    watch = Watch(out, folder)
    try:
        with watch.showing():
            result: Result = go_on(folder, listeners=[watch])
    except KeyboardInterrupt:
        err.print(f"\nstopped; go on with: fedspecial resume {folder}", markup=False)
        sys.exit(130)
    out.print(matrix_table(f"{result.method} on {result.benchmark}", result.tasks, result.matrix))
    out.print(result_line(result))
    out.print(f"everything is in {folder}", markup=False)


def _run_planned(planned: list[Job], jobs: int | None) -> dict[str, list[Result]]:
    from fedspecial.cli.progress import CountingBar
    from fedspecial.runs.compare import run_all
    from fedspecial.runs.jobs import cores, progress

    threads = int(planned[0].settings.get("threads", 1))
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs={jobs}: must be at least 1")
    bar = CountingBar(out, f"{len(planned)} runs", lambda: progress(planned))
    try:
        with bar.showing():
            return run_all(planned, jobs or cores(threads), bar.tick)
    except KeyboardInterrupt:
        err.print(f"\nstopped; the same command with --out {planned[0].folder.parent} goes on", markup=False)
        sys.exit(130)


def _print_comparison(benchmark: str, folder: Path, results: dict[str, list[Result]], matrices: bool) -> None:
    from fedspecial.cli.tables import comparison_table, matrix_table, result_line
    from fedspecial.report.comparison import Summary, draw_matrices, markdown, mean_matrix

    draw_matrices(results, folder / "comparison.png")
    (folder / "comparison.md").write_text(markdown(results), encoding="utf-8")
    if matrices:
        for name, runs in results.items():
            seeds = ", ".join(str(r.seed) for r in runs)
            out.print(matrix_table(f"{name} on {benchmark} (seed {seeds})", runs[0].tasks, mean_matrix(runs)))
            if len(runs) == 1:
                out.print(result_line(runs[0]) + "\n")
    seeds = ", ".join(str(r.seed) for r in next(iter(results.values())))
    title = f"{benchmark}, seeds {seeds}: per cent, mean ± standard deviation"
    out.print(comparison_table(title, [Summary.of(runs) for runs in results.values()]))
    out.print(f"everything is in {folder}; see comparison.png, comparison.md", markup=False)


def main() -> None:
    try:
        sys.exit(app(standalone_mode=False))
    except click.ClickException as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            error.show()
            sys.exit(error.exit_code)
        context = getattr(error, "ctx", None)
        fail(f"{error.format_message()} (see {context.command_path if context else 'fedspecial'} --help)")
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    main()
