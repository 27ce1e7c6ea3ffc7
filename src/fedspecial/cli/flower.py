"""`fedspecial flower`: an app for Flower, and what a federation leaves behind. Needs no torch; `audit` no Flower."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedspecial.cli.console import one_line_errors, out

app = typer.Typer(help="A real federation on Flower: an app to start from, the audit log.", no_args_is_help=True)


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
    from fedspecial.deploy.audit import verify

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
