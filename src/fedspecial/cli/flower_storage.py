"""Commands of `fedspecial flower` about stored state: backup, restore, and what a site wants to be forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedspecial.cli.console import one_line_errors, out
from fedspecial.core.files import owner_only

storage = typer.Typer()

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Run directory of the server, or state folder of a site (`state`).")
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The backup, a .tar.gz file.")]


@storage.command()
@one_line_errors()
def backup(folder: Folder, file: File) -> None:
    """Write a backup of a run directory or of a site's state folder; the run may be working.

    The file contains the key that signs the audit log, and client states: keep it as private as the folder.

    Example:  fedspecial flower backup run run-monday.tar.gz
    """
    from fedspecial.flower.ops.backup import back_up

    out.print(f"wrote {file} ({back_up(folder, file)} files)", markup=False)


@storage.command()
@one_line_errors()
def restore(file: File, folder: Folder) -> None:
    """Restore a backup to a new folder, after checking every file in it.

    Example:  fedspecial flower restore run-monday.tar.gz run
    """
    from fedspecial.flower.ops import backup as backups

    out.print(f"restored {folder} ({backups.restore(file, folder)} files)", markup=False)


@storage.command()
@one_line_errors()
def revoke(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Run directory (the setting `out`) on the server.")],
    site: Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is written to the audit log.")],
    key: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="Only this key: the beginning of its fingerprint in site-keys.json."),
    ] = None,
) -> None:
    """Revoke a site's key: the server treats nodes with it as absent from its next exchange of messages on.

    Example:  fedspecial flower revoke run north --reason "laptop was stolen"
    """
    from fedspecial.flower.app.task_control import check_federation
    from fedspecial.flower.governance.site_keys import revoke as revoke_keys

    check_federation(folder)
    with owner_only():
        revoked = revoke_keys(folder, site, key, reason)
    for name in revoked:
        out.print(f"revoked the key {name} of site {site}", markup=False)
    out.print("also remove it from the SuperLink: flwr supernode list, then flwr supernode unregister", markup=False)


@storage.command("forget-site")
@one_line_errors()
def forget_site(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="State folder of the site (`state` in its node config).")
    ],
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only this run; it is a folder in DIR.")] = None,
) -> None:
    """Delete the client states and payloads that a site stores. Stop its SuperNode first.

    Example:  fedspecial flower forget-site /srv/fedspecial/state
    """
    from fedspecial.flower.ops.backup import NOT_REMOVED, forget

    for name in forget(folder, run):
        out.print(f"deleted the client states and payloads of run {name} in {folder}", markup=False)
    out.print(f"note: {NOT_REMOVED}", markup=False)
