"""`fedspecial flower`: an app, keys and the audit log of a real federation. Nothing here needs torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedspecial.cli.console import one_line_errors, out

app = typer.Typer(help="A real federation on Flower: app, keys, audit log.", no_args_is_help=True)


@app.command()
@one_line_errors()
def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]) -> None:
    """Write a Flower app that runs any method; its README leads from keys to the first run.

    Example:  fedspecial flower init federation
    """
    from fedspecial.deploy.init import write_app

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
    from fedspecial.deploy import require_flower

    require_flower()
    from fedspecial.deploy import pki

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
