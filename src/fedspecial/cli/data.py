"""`fedspecial data`: list the benchmarks, check their files, and show samples."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspecial.cli.console import one_line_errors
from fedspecial.data import catalogue
from fedspecial.data.loading.bad_rows import ignore
from fedspecial.data.loading.request import Progress as ProgressCallback
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.config import Config
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.entry import Entry, Size

app = typer.Typer(help="List the benchmarks, check their files, show samples.", no_args_is_help=True)

Data = Annotated[Path | None, typer.Option(help="The data folder (default: the environment variable FEDSPECIAL_DATA).")]
Name = Annotated[str, typer.Argument(help="A benchmark, a preset, or file.py:function.")]
Pairs = Annotated[list[str] | None, typer.Argument(help="Settings as key=value, for example domains=usps,mnist.")]
MARKS = {"ok": "ok     ", "note": "note   ", "smaller": "smaller", "bad": "BAD    "}


@app.command("list")
@one_line_errors()
def list_(data: Data = None) -> None:
    """List every benchmark: domains in order, classes, published and found sizes, licence, download page."""
    from fedspecial.data.check import found_sizes

    for name in catalogue.names():
        entry = catalogue.entry(name)
        _say(f"{name}: {entry.title}")
        setting = "class-incremental" if entry.incremental == "class" else "domain-incremental"
        if entry.num_classes:
            _say(f"  {entry.num_classes} classes, {entry.kind}, {setting}")
        _list_sizes(entry, found_sizes(name, data))
        _say(f"  licence: {entry.licence}")
        for domain, source in entry.sources.items():
            _say(f"  get it: {domain + ': ' if domain else ''}{source}")
        if entry.options:
            _say("  options: " + ", ".join(f"{key}={value}" for key, value in entry.options.items()))
        _say("")


def _list_sizes(entry: Entry, found: dict[str, Size]) -> None:
    for number, domain in enumerate(entry.all_domains):
        order = f"{number + 1}." if domain in entry.domains else "+ "
        expected = _size(entry.sizes.get(domain)) or ("built in" if not entry.needs_data else "no published size")
        present = "" if not entry.needs_data else f"; found {_size(found.get(domain)) or 'nothing'}"
        _say(f"  {order:<3}{domain:<20}{expected}{present}")


def _size(size: Size | None) -> str:
    if size is None:
        return ""
    return f"{size[0]:,}" if size[1] is None else f"{size[0]:,} + {size[1]:,}"


@app.command()
@one_line_errors()
def check(
    name: Name,
    settings: Pairs = None,
    data: Data = None,
    strict: Annotated[
        bool, typer.Option(help="Exit with code 2 also if the data differs from what was published.")
    ] = False,
) -> None:
    """Read every sample once and report counts, shapes, labels, checksums and missing files.

    The exit code is 0 if all data can be used, even if there is less than was published (--strict: then 2), and 2
    if anything is missing or cannot be read.
    """
    from fedspecial import objectives
    from fedspecial.data import check as checking

    config = _config(name, settings, data)
    settings_of_load = {**_load_settings(config), "targets": objectives.find(str(config.objective)).targets}
    found = []
    with _progress() as progress:
        for finding in checking.check(str(config.benchmark), progress=progress, **settings_of_load):
            found.append(finding)
            _say(f"{MARKS[finding.level]} {finding.line}")
    bad = sum(finding.level == "bad" for finding in found)
    _say(f"{name}: {'all data can be used' if not bad else f'problems: {bad}'}")
    raise typer.Exit(checking.exit_code(found, strict))


@app.command()
@one_line_errors()
def show(
    name: Name,
    settings: Pairs = None,
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="The file to write (default: NAME.png).")] = None,
) -> None:
    """Draw samples of each domain and class, and the label histogram of each client for the given alpha.

    With stream=…, a second figure NAME-stream.png shows which domain each client has in which round.
    """
    config = _config(name, settings, data)
    with _progress() as progress:
        benchmark = catalogue.load(str(config.benchmark), notice=_say, progress=progress, **_load_settings(config))
    path = out or Path(f"{name}.png")
    _draw(config, benchmark, path)
    _say(f"wrote {path}")
    if any(pair.startswith("stream=") for pair in settings or []):
        path = path.with_name(f"{path.stem}-stream.png")
        _draw_stream(config, benchmark, path)
        _say(f"wrote {path}")


def _draw(config: Config, benchmark: Benchmark, path: Path) -> None:
    from fedspecial.data.preview import draw, save
    from fedspecial.runs.data import partitions

    parts = partitions(config, benchmark)
    has_sites = any(domain.sites is not None for domain in benchmark.domains)
    split = "given sites" if has_sites else f"{config.partition}, alpha={config.alpha:g}, seed={config.seed}"
    figure = draw(
        benchmark, parts,
        title=f"{benchmark.name}: {parts[0].num_clients} clients, {split}",
        texts=_texts(config, benchmark) if benchmark.kind == "text" else None,
        features=catalogue.entry(str(config.benchmark)).features,
    )  # fmt: skip
    save(figure, path)


def _draw_stream(config: Config, benchmark: Benchmark, path: Path) -> None:
    from fedspecial.data.preview import save
    from fedspecial.data.stream_preview import draw_stream
    from fedspecial.data.stream_schedule import StreamSchedule

    counts = [len(domain.sites) for domain in benchmark.domains if domain.sites is not None]
    clients = counts[0] if counts else config.clients
    schedule = StreamSchedule(
        len(benchmark.domains), config.rounds, clients, config.stream, config.stream_width, config.passes, config.seed
    )
    save(draw_stream(schedule, benchmark.task_names, f"{benchmark.name}, seed={config.seed}"), path)


def _texts(config: Config, benchmark: Benchmark) -> list[list[tuple[str, ...]]]:
    """One text of each domain and class, read again, since token ids cannot be turned back into words."""
    from dataclasses import replace

    entry = catalogue.entry(str(config.benchmark))
    request = catalogue.make_request(entry, _folder(config), config.domains, **config.options)
    request = replace(request, on_bad="skip")
    return [entry.example_texts(request, domain.name, benchmark.classes) for domain in benchmark.domains]


def _config(name: str, settings: list[str] | None, data: Path | None) -> Config:
    """The settings of a benchmark or preset, replaced by the user's. The benchmark's options count as settings."""
    from fedspecial.config import Config, merge_settings, parse_settings, preset_settings

    given = parse_settings(settings or [])
    entry = catalogue.entry(str(preset_settings(name).get("benchmark", name)))
    own = {key: given.pop(key) for key in list(given) if key in entry.options}
    for key in given:
        if key not in Config.model_fields:
            hint = did_you_mean(key, [*Config.model_fields, *entry.options])
            raise InputError(f"{key}: unknown setting for the data of '{entry.name}'{hint}")
    found = merge_settings({"benchmark": name, **given, **({"data": str(data)} if data else {})})
    merged = {key: value for key, value in found.items() if key in Config.model_fields}
    return Config(**{**merged, "options": {**merged.get("options", {}), **own}})


def _folder(config: Config) -> Path | None:
    return Path(config.data) if config.data else None


def _load_settings(config: Config) -> dict[str, Any]:
    return {
        "data": _folder(config),
        "domains": config.domains,
        "cap": config.cap,
        "image_size": config.image_size,
        "seed": config.seed,
        "on_bad": config.on_bad,
        **config.options,
    }


@contextmanager
def _progress() -> Iterator[ProgressCallback]:
    """A progress bar on a terminal; nothing if the output goes to a file."""
    if not sys.stderr.isatty():
        yield ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("reading", total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def _say(line: str) -> None:
    typer.echo(line)
