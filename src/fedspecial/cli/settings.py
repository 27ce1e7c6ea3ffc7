"""Settings on the command line: how they are given, listed and completed. Needs no torch for the common ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import click
import typer
from rich.table import Table
from typer.core import TyperCommand

from fedspecial.cli.console import out
from fedspecial.config import Settings, parse_settings, preset_names, read_run_file, refuse_unread_data
from fedspecial.config.describe import Setting, common_settings, method_settings
from fedspecial.errors import InputError


def complete(incomplete: str) -> list[str]:
    """What the shell offers for an argument of ``fedspecial run``: benchmarks, settings, and values that are names."""
    from fedspecial import methods

    key, equals, _ = incomplete.partition("=")
    if equals:
        known = {"method": methods.names(), "benchmark": preset_names()}
        offered = [f"{key}={value}" for value in known.get(key, [])]
    else:
        offered = [*preset_names(), *(f"{row.name}=" for rows in common_settings().values() for row in rows)]
    return [text for text in offered if text.startswith(incomplete)]


SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[BENCHMARK | CONFIG.yaml] [KEY=VALUE]...", autocompletion=complete, show_default=False),
]
DataOption = Annotated[
    str | None,
    typer.Option("--data", help="Folder with the data files (or the environment variable FEDSPECIAL_DATA)."),
]


class CommandWithSettings(TyperCommand):
    """A command whose help ends with the list of settings."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help(ctx, formatter)
        out.print("Settings (KEY=VALUE, with their defaults):", style="bold")
        for title, rows in common_settings().items():
            out.print(f"\n{title}", style="bold")
            out.print(_grid((f"{row.name}={row.default}", row.description) for row in rows))
        out.print("\nEach method has further settings: fedspecial list settings METHOD", markup=False)


def print_settings(method: str | None) -> None:
    """Name, type, default and description of the settings: the common ones, or those that only one method has."""
    if method is not None:
        rows = method_settings(method)
        out.print(f"Settings of method {method}" if rows else f"{method} has no settings of its own", markup=False)
        out.print(_table(rows))
        return
    for title, rows in common_settings().items():
        out.print(title, style="bold")
        out.print(_table(rows))
        out.print()
    out.print("Each method has further settings: fedspecial list settings METHOD", markup=False)


def _table(rows: Iterable[Setting]) -> Table:
    return _grid((row.name, row.type, row.default, row.description) for row in rows)


def _grid(rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for cells in rows:
        if not table.columns:
            for number in range(len(cells)):
                table.add_column(no_wrap=number == 0, overflow="fold")
        table.add_row(*(cell.replace("[", r"\[") for cell in cells))
    return table


def given_settings(arguments: list[str], data: str | None, *, new: bool = False) -> Settings:
    """Settings from the command line: an optional benchmark or settings file first, then key=value pairs.

    new: of new runs, so that data which their benchmark would not read is refused; that of a file may be a record
    """
    given: Settings = {}
    if arguments and "=" not in arguments[0]:
        first, arguments = arguments[0], arguments[1:]
        if first.endswith((".yaml", ".yml")):
            given = read_run_file(Path(first))
        else:
            given["benchmark"] = first
    pairs = parse_settings(arguments)
    if "benchmark" in pairs and "benchmark" in given:
        raise InputError(f"benchmark: it is given twice ({given['benchmark']!r} and {pairs['benchmark']!r})")
    if data is not None:
        pairs["data"] = data
    given |= pairs
    if new and "data" in pairs:
        refuse_unread_data(given)
    return given
