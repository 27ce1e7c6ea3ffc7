"""`fedspecial flower`: an app, keys, the audit log and a demo of a real federation. Nothing here needs torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedspecial.cli.console import err, one_line_errors, out

app = typer.Typer(help="A real federation on Flower: app, keys, audit log, demo.", no_args_is_help=True)


@app.command()
@one_line_errors()
def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]) -> None:
    """Write a Flower app that runs any method; its README leads from keys to the first run.

    Example:  fedspecial flower init hospitals
    """
    from fedspecial.flower.ops.init import write_app

    for path in write_app(folder):
        _say(f"wrote {path}")
    _say(f"go on with {folder / 'README.md'}")


@app.command()
@one_line_errors()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where they are written; what exists stays.")],
    host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Name or address under which sites reach the server.")
    ] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="NAME", help="A site that gets a key.")] = None,
) -> None:
    """Make an authority, the server's certificate and a key for each site; more sites can be added later.

    Example:  fedspecial flower keys keys --host link.example.org --node north --node south
    """
    from fedspecial.flower import require_flower

    require_flower()
    from fedspecial.flower.ops import pki

    authority = pki.Authority(folder / "ca.pem", folder / "ca.key")
    if not authority.certificate.exists():
        pki.make_authority(folder)
        _say(f"wrote {authority.certificate}: for every site and operator, and {authority.key}: keep it off-line")
    if host or not (folder / "server.pem").exists():
        server = pki.make_server_identity(folder, authority, hosts=host or [])
        _say(f"wrote {server.certificate} and {server.key}: for the SuperLink")
    for name in node or []:
        key = pki.make_node_key(folder, name)
        _say(f"wrote {key.private}: for site {name} only, and {key.public}: to be registered at the SuperLink")


@app.command()
@one_line_errors()
def demo(
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder (default: runs/flower-demo-001, …).")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of each of the two tasks.")] = 2,
) -> None:
    """Run a whole federation on this machine: TLS, one SuperLink, four SuperNodes, two tasks of SPECIAL.

    Example:  fedspecial flower demo
    """
    from fedspecial.errors import InputError
    from fedspecial.flower import require_flower
    from fedspecial.runs import directory

    require_flower()
    from fedspecial.cli.tables import matrix_table
    from fedspecial.flower.ops.demo import TASKS, demonstrate
    from fedspecial.flower.ops.processes import ProcessError

    folder = folder or directory.next_number("flower-demo")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"out={folder}: it exists already and is not an empty folder; nothing was changed")
    try:
        came = demonstrate(folder, rounds, _say)
    except ProcessError as error:
        err.print(f"Error: {error}", markup=False)
        sys.exit(1)
    except KeyboardInterrupt:
        err.print("stopped; no process is left behind")
        sys.exit(130)
    if all(value is not None for row in came.matrix for value in row):
        out.print(matrix_table("SPECIAL on four sites", TASKS, [[v or 0.0 for v in row] for row in came.matrix]))
    for task, reason in zip(TASKS, came.decisions, strict=True):
        _say(f"after {task}: {reason}")
    for path in came.published:
        _say(f"  {path / 'model.safetensors'}")
    verdict = "whole" if came.audit.sound else f"NOT WHOLE: {came.audit.problems[0]}"
    _say(f"audit log {came.run / 'audit.jsonl'}: {came.audit.lines} lines, {verdict}, head {came.audit.head}")


@app.command("next-task")
@one_line_errors()
def next_task(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The `out` of the run, on the server's machine.")],
) -> None:
    """End the task under way: after the round that is being played, the next task begins.

    Example:  fedspecial flower next-task run
    """
    from fedspecial.flower.app.tasks import end_task

    _say(f"task {end_task(folder)} ends after the round under way")


@app.command()
@one_line_errors()
def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The log that the server wrote.")],
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="The head in the checkpoint or the model card.")
    ] = None,
) -> None:
    """Check that no line of an audit log was edited, removed or moved; with --head, that its end is there.

    Example:  fedspecial flower audit runs/a/audit.jsonl --head 5f3c…
    """
    from fedspecial.flower.governance.audit import verify

    report = verify(file, head)
    counted = ", ".join(f"{number} {outcome}" for outcome, number in sorted(report.outcomes.items())) or "no round"
    repeated = sum(number - 1 for number in report.attempts.values())
    _say(f"{report.lines} lines; attempts at rounds: {counted}; {repeated} of them repeated a round")
    for site in sorted({*report.answered, *report.refused}):
        _say(f"  site {site}: {report.answered[site]} answers used, {report.refused[site]} refused")
    for note in report.notes:
        _say(f"note: {note}")
    _say(f"head {report.head}")
    for problem in report.problems:
        _say(f"NOT WHOLE: {problem}")
    if report.problems:
        sys.exit(1)
    _say("the log is whole" + ("" if head else "; give --head to know that its end is there too"))


def _say(text: str) -> None:
    out.print(text, markup=False)
