"""`fedspecial flower`: commands for a real federation. None of them needs torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedspecial.cli.console import err, one_line_errors, out
from fedspecial.cli.flower_operations import operations, read_head, read_key
from fedspecial.cli.flower_sites import sites
from fedspecial.cli.flower_storage import storage
from fedspecial.core.files import owner_only

app = typer.Typer(help="Run a real federation on Flower: app, keys, demo, audit log.", no_args_is_help=True)
app.add_typer(operations)
app.add_typer(sites)
app.add_typer(storage)


@app.command()
@one_line_errors()
def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]) -> None:
    """Create a Flower app that can run every method. Its README describes all steps up to the first run.

    Example:  fedspecial flower init hospitals
    """
    from fedspecial.flower.ops.new_app import write_app

    for path in write_app(folder):
        _print(f"wrote {path}")
    _print(f"next: read {folder / 'README.md'}")


@app.command()
@one_line_errors()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder; existing files are kept.")],
    host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Host name or IP address of the server.")
    ] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Name of a site to create a key for.")] = None,
) -> None:
    """Create a certificate authority, the server's certificate and a key for each site. Sites can be added later.

    Each has a folder of its own, which only its owner can read: DIR/authority, DIR/server and DIR/SITE.

    Example:  fedspecial flower keys keys --host link.example.org --node north --node south
    """
    from fedspecial.flower import require_flower

    require_flower()
    from fedspecial.flower.ops.pki import make_keys

    for line in make_keys(folder, host or [], node or []):
        _print(line)


@app.command()
@one_line_errors()
def demo(
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="New folder for all files (default: runs/flower-demo-001, …)."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds per task.")] = 2,
) -> None:
    """Run a complete federation on this machine: one SuperLink, four SuperNodes, TLS, two tasks with SPECIAL.

    Example:  fedspecial flower demo
    """
    from fedspecial.errors import InputError
    from fedspecial.flower import require_flower
    from fedspecial.runs import directory

    require_flower()
    from fedspecial.cli.tables import matrix_table
    from fedspecial.flower.ops.demo import TASKS, run_demo
    from fedspecial.flower.ops.processes import ProcessError

    folder = folder or directory.next_number("flower-demo")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"out={folder}: it exists and is not an empty folder; nothing was changed")
    try:
        with owner_only():
            result = run_demo(folder, rounds, _print)
    except ProcessError as error:
        err.print(f"Error: {error}", markup=False)
        sys.exit(1)
    except KeyboardInterrupt:
        err.print("stopped; no process is left running")
        sys.exit(130)
    out.print(matrix_table("SPECIAL on four sites: accuracy", TASKS, result.matrix))
    for task, reason in zip(TASKS, result.decisions, strict=True):
        _print(f"after {task}: {reason}")
    for path in result.published:
        _print(f"  {path / 'model.safetensors'}")
    status = "intact" if result.audit.intact else f"NOT INTACT: {result.audit.problems[0]}"
    _print(f"audit log {result.run / 'audit.jsonl'}: {result.audit.lines} lines, {status}, head {result.audit.head}")


@app.command("next-task")
@one_line_errors()
def next_task(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Run directory (the setting `out`) on the server.")],
) -> None:
    """End the current task after the current round; the next task then starts.

    Example:  fedspecial flower next-task run
    """
    from fedspecial.flower.app.task_control import request_task_end

    with owner_only():
        task = request_task_end(folder)
    _print(f"task {task} will end after the current round")


@app.command()
@one_line_errors()
def audit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Audit log of a federation.")],
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HASH",
            help="Hash of a line that must be in the log, from the model card, or the file audit-head.json of a site.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The server's public key, or the file signing.pub.")
    ] = None,
) -> None:
    """Check that no line of an audit log was edited, removed or moved, and its signatures.

    With --head, also that it was not truncated; with --key, that the server whose key it is has signed it.

    Example:  fedspecial flower audit runs/a/audit.jsonl --head 5f3c…
    """
    from fedspecial.flower.governance.audit import verify

    report = verify(file, read_head(head), read_key(key))
    counted = ", ".join(f"{number} {outcome}" for outcome, number in sorted(report.outcomes.items())) or "none"
    repeated = sum(number - 1 for number in report.attempts.values())
    _print(f"{report.lines} lines; rounds: {counted}; {repeated} repeated attempts")
    for site in sorted({*report.updates, *report.refusals}):
        _print(f"  site {site}: {report.updates[site]} updates used, {report.refusals[site]} replies refused")
    for note in report.notes:
        _print(f"note: {note}")
    _print(f"{report.signed} lines signed with the key {report.key}" if report.key else "the log is not signed")
    _print(f"head {report.head}")
    problems = report.problems if report.lines else [*report.problems, "it has no lines"]
    for problem in problems:
        _print(f"NOT INTACT: {problem}")
    if problems:
        sys.exit(1)
    _print("the log is intact" + ("" if head else "; give --head to check that it was not truncated"))


def _print(text: str) -> None:
    out.print(text, markup=False)
