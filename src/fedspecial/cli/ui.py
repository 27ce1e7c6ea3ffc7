"""`fedspecial ui`: a local web page over a folder of runs."""

from __future__ import annotations

import contextlib
import getpass
import os
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedspecial.cli.console import err, one_line_errors
from fedspecial.errors import InputError


@one_line_errors()
def ui(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of runs, or one run.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the page in a browser.")] = False,
) -> None:
    """Show runs, comparisons and federations in the browser, live. Only files are read; nothing is changed.

    The page is reachable from this machine only, at the address that is printed. Stop it with Ctrl-C.

    Example:  fedspecial ui runs
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: there is no such folder; name a folder of runs, for example: fedspecial ui studies"
        )
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port}: expected a number from 0 to 65535")
    from fedspecial.ui.server import UiServer

    try:
        server = UiServer(folder, port)
    except OSError as error:
        raise InputError(
            f"--port {port}: it cannot be used ({error.strerror}); leave it out to take a free one"
        ) from None
    with server:
        print(server.address, flush=True)
        connection = os.environ.get("SSH_CONNECTION", "").split()
        if connection:
            _print_forwarding(server.server_port, connection)
        elif not no_browser:
            webbrowser.open(server.address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def _print_forwarding(port: int, connection: list[str]) -> None:
    """connection: the parts of SSH_CONNECTION, which ends with this machine's address and port"""
    host, ssh_port = (connection[2], connection[3]) if len(connection) == 4 else ("HOST", "22")
    option = "" if ssh_port == "22" else f"-p {ssh_port} "
    err.print("To open this address on your own machine, run there:", markup=False)
    err.print(f"ssh {option}-N -L {port}:127.0.0.1:{port} {getpass.getuser()}@{host}", markup=False)
