"""The command line: ``fedspecial run``, ``resume``, ``compare``, ``evaluate``, ``list``, …"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import click
import typer

from fedspecial import __version__, config
from fedspecial.cli import data, flower, study, theory, tuning, ui
from fedspecial.cli.comparison import compare_with_progress, print_comparison
from fedspecial.cli.console import fail, one_line_errors, out, seeds_of
from fedspecial.cli.predict import predict
from fedspecial.cli.run_progress import resume_with_progress
from fedspecial.cli.settings import CommandWithSettings, DataOption, SettingsArgument, given_settings, print_settings
from fedspecial.config.paths import short_name
from fedspecial.errors import InputError
from fedspecial.runs import directory

app = typer.Typer(
    name="fedspecial",
    help="Federated domain-incremental learning: train a federation on one domain after another and measure how much "
    "it learns and forgets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
app.add_typer(theory.app, name="theory")
app.add_typer(flower.app, name="flower")

LISTS = ("methods", "benchmarks", "models", "settings")
COMPARE_OPTIONS = {"method": "--methods", "seed": "--seeds", "out": "--out"}


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"fedspecial {__version__}", markup=False)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(cls=CommandWithSettings)
def run(settings: SettingsArgument = None, data: DataOption = None) -> None:
    """Run one federation. Without arguments: SPECIAL on the built-in benchmark digits-shift.

    Example:  fedspecial run digits-shift method=special lam=0.25 seed=25 out=runs/a
    """
    from fedspecial.runs.api import new_run

    with one_line_errors(), new_run(given_settings(settings or [], data, new=True)) as folder:
        resume_with_progress(folder)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    settings: Annotated[list[str] | None, typer.Argument(metavar="[workers=N]")] = None,
) -> None:
    """Continue a run that was stopped; the result is bit for bit the same as without the interruption.

    Example:  fedspecial resume runs/a workers=2
    """
    from fedspecial.runs.api import execution_settings

    with one_line_errors():
        execution = execution_settings(config.parse_settings(settings or []))
        if directory.finished(folder) is not None:
            out.print(f"{folder}: this run is finished; nothing to do", markup=False)
        else:
            resume_with_progress(folder, execution)


@app.command()
def extend(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    domains: Annotated[list[str], typer.Argument(metavar="DOMAIN... [workers=N]")],
) -> None:
    """Go on with a finished run on further domains, as if it had known them from the start.

    Example:  fedspecial extend runs/a photo
    """
    with one_line_errors():
        execution = config.parse_settings([part for part in domains if "=" in part])
        resume_with_progress(folder, execution, [part for part in domains if "=" not in part])


@app.command()
def compare(
    settings: Annotated[list[str], typer.Argument(metavar="BENCHMARK [KEY=VALUE]...")],
    methods: Annotated[str, typer.Option(help="Names separated by commas, or 'all'.")] = "special,fedavg",
    seeds: Annotated[str, typer.Option(help="Numbers separated by commas.")] = "25,225,2025",
    jobs: Annotated[
        int | None, typer.Option(help="Runs at the same time; default: those that fit on the cores.")
    ] = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the runs; finished ones are reused.")
    ] = None,
    matrices: Annotated[bool, typer.Option("--matrices", help="Also print each method's accuracy matrix.")] = False,
    data: DataOption = None,
) -> None:
    """Run several methods and seeds on the same federation and print mean ± standard deviation.

    Example:  fedspecial compare digits-shift --methods special,fedavg --seeds 25,225,2025
    """
    with one_line_errors():
        for pair in settings:
            if (key := pair.partition("=")[0]) in COMPARE_OPTIONS and "=" in pair:
                raise InputError(f"{pair}: use the option {COMPARE_OPTIONS[key]} of compare instead")
        # A settings file, such as the preset that tune writes, may have what the options of compare choose.
        given = {key: value for key, value in given_settings(settings, data).items() if key not in COMPARE_OPTIONS}
        benchmark = str(given.pop("benchmark", config.Config().benchmark))
        names = _all_for(benchmark) if methods == "all" else [name.strip() for name in methods.split(",")]
        folder = out_folder or directory.next_number(f"compare-{short_name(benchmark)}")
        given |= {"benchmark": benchmark, "methods": names, "seeds": seeds_of(seeds), "jobs": jobs, "out": folder}
        print_comparison(benchmark, compare_with_progress(given), matrices)


def _all_for(benchmark: str) -> list[str]:
    """Every method that works on the benchmark's data; prints which ones do not."""
    from fedspecial import methods
    from fedspecial.data import catalogue

    kind = catalogue.entry(config.benchmark_of_preset(benchmark)).kind
    if kind is None:
        raise InputError(f"--methods all: the kind of data of '{benchmark}' is not known; name the methods")
    names = methods.names_for(kind)
    if others := [name for name in methods.names() if name not in names]:
        out.print(f"left out because they do not work on {kind} data: {', '.join(others)}", markup=False)
    return names


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    settings: Annotated[list[str] | None, typer.Argument(metavar="[BENCHMARK] [KEY=VALUE]...")] = None,
    data: DataOption = None,
) -> None:
    """Test a finished model on a benchmark's domains, by default those it was trained on.

    Example:  fedspecial evaluate runs/a digits-shift domains=photo
    """
    with one_line_errors():
        recorded = directory.settings(folder)
        given = given_settings(settings or [], data)
        from fedspecial import objectives
        from fedspecial.report.scale import Scale
        from fedspecial.runs import evaluate as evaluation

        found = evaluation.evaluate(folder, given.pop("benchmark", None), **given)
        main = objectives.find(str(recorded.get("objective", config.Config().objective))).main
        scale = Scale(main.name, main.low, main.high)
        for name, value in found.items():
            out.print(f"{name}: {scale.text(value)}{scale.unit}", markup=False)


app.command("predict")(predict)


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="methods|benchmarks|models|settings")],
    method: Annotated[str | None, typer.Argument(metavar="[METHOD]", help="Only with settings.")] = None,
) -> None:
    """Show the names that can be used, or the settings (of all runs, or of one method).

    Example:  fedspecial list settings special
    """
    with one_line_errors():
        if what not in LISTS:
            raise InputError(f"list '{what}': expected {', '.join(LISTS[:-1])} or {LISTS[-1]}")
        if what == "settings":
            print_settings(method)
            return
        if method is not None:
            raise InputError(f"'{method}': only 'list settings' takes a method")
        lines = _descriptions(what)
        width = max(map(len, lines))
        for name, text in lines.items():
            out.print(f"{name:<{width}}  {text}", markup=False)


def _descriptions(what: str) -> dict[str, str]:
    if what == "methods":
        from fedspecial import methods

        return {name: methods.describe(name) for name in methods.names()}
    if what == "models":
        from fedspecial import models

        return {name: models.describe(name) for name in models.names()}
    from fedspecial.data import catalogue

    return {name: catalogue.entry(config.benchmark_of_preset(name)).title for name in config.preset_names()}


@app.command()
def schema() -> None:
    """Print the JSON schema of settings files, with which an editor completes and checks them.

    Example:  fedspecial schema > settings.schema.json
    """
    from fedspecial.config.describe import settings_schema

    print(json.dumps(settings_schema(), indent=1, ensure_ascii=False))


for command in (study.study, study.report, tuning.tune, ui.ui):
    app.command()(command)


def _said_once(message: str) -> str:
    """The message without a repeated sentence: both click and typer add the same hint to an unknown command."""
    return " ".join(dict.fromkeys(re.split(r"(?<=[.?]) ", message)))


def _remedy(error: click.ClickException, context: click.Context | None) -> str:
    """For a setting that is written as an option (--rounds 2): how settings are written."""
    option = getattr(error, "option_name", "")
    takes_settings = context is not None and any("KEY=VALUE" in (p.metavar or "") for p in context.command.params)
    if not (takes_settings and isinstance(error, click.NoSuchOption) and option.startswith("--")):
        return ""
    name = option.removeprefix("--").replace("-", "_")
    return f" A setting has no dashes and an equals sign: {name}=VALUE."


def main() -> None:
    try:
        sys.exit(app(prog_name="fedspecial", standalone_mode=False))
    except click.ClickException as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            error.show()
            sys.exit(error.exit_code)
        context = getattr(error, "ctx", None)
        message = f"{_said_once(error.format_message())}{_remedy(error, context)}"
        fail(f"{message} (see {context.command_path if context else 'fedspecial'} --help)")
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    main()
