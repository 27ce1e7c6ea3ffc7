"""Commands of `fedspecial flower` that are used at a site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedspecial.cli.console import one_line_errors, out

sites = typer.Typer()


@sites.command("check-site")
@one_line_errors()
def check_site(
    node_config: Annotated[
        str,
        typer.Option(metavar="TEXT", help='As for the SuperNode: site="north" data="/srv/scans" state=…'),
    ],
    app: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The federation's Flower app; with it, the data is read.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The site's private key.")] = None,
    superlink: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the sites connect to.")] = None,
    root_certificates: Annotated[Path | None, typer.Option(metavar="FILE", help="The federation's ca.pem.")] = None,
) -> None:
    """Check a site before it joins: policy, data of every task, disk, private key, connection, clock.

    Example:  fedspecial flower check-site --node-config 'site="north" data="/srv/scans"' --app hospitals --key north
    """
    from fedspecial.flower import require_flower

    require_flower()
    from fedspecial.flower.ops.check_site import check_site as check

    found = check(node_config, app, key, superlink, root_certificates)
    for text in found.passed:
        out.print(f"ok: {text}", markup=False)
    for text in found.notes:
        out.print(f"note: {text}", markup=False)
    for text in found.failed:
        out.print(f"FAILED: {text}", markup=False)
    if found.failed:
        sys.exit(1)
    out.print("the site is ready")
