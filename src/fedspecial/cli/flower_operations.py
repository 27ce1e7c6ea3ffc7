"""Further commands of `fedspecial flower`: what operators and auditors need day to day."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspecial.cli.console import err, one_line_errors, out
from fedspecial.core.files import owner_only
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.flower.app.membership import Kind

operations = typer.Typer()

RunFolder = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Run directory (the setting `out`) on the server.")]


@operations.command()
@one_line_errors()
def status(
    folder: RunFolder,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    serve: Annotated[
        int | None,
        typer.Option("--serve", metavar="PORT", help="Serve the numbers for Prometheus at 127.0.0.1:PORT/metrics."),
    ] = None,
) -> None:
    """Show the sites, their answers and refusals, the rounds, accuracies, the gate, the privacy budget, the audit log.

    Example:  fedspecial flower status run
    """
    from fedspecial.ui.status import metrics_server, status_of, status_text

    if serve is not None:
        if not 0 <= serve <= 65535:
            raise InputError(f"--serve {serve}: expected a port from 0 to 65535")
        try:
            server = metrics_server(folder, serve)
        except OSError as error:
            raise InputError(f"--serve {serve}: the port cannot be used ({error.strerror})") from None
        with server:
            print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
        return
    found = status_of(folder)
    print(json.dumps(found, indent=1, ensure_ascii=False)) if as_json else out.print(status_text(found), markup=False)


@operations.command()
@one_line_errors()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A published model: RUN_DIR/published/task-N.")],
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The audit log, if it is not in the run directory.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The server's public key, or the file signing.pub.")
    ] = None,
) -> None:
    """Check a published model against its card, the signed audit log and the checkpoint.

    Example:  fedspecial flower verify run/published/task-2 --key signing.pub
    """
    from fedspecial.flower.ops.verify import verify_published

    found = verify_published(folder, log, read_key(key))
    for text in found.checks:
        out.print(f"ok: {text}", markup=False)
    for text in found.notes:
        out.print(f"note: {text}", markup=False)
    for text in found.problems:
        out.print(f"NOT VERIFIED: {text}", markup=False)
    if found.problems:
        sys.exit(1)
    out.print("the model is verified")


@operations.command()
@one_line_errors()
def promote(
    folder: RunFolder,
    task: Annotated[int, typer.Argument(metavar="TASK", min=1, help="Number of the task.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is written to the audit log and the card.")],
) -> None:
    """Publish a model that the promotion gate refused. The run must be stopped; the reason is in the audit log.

    Example:  fedspecial flower promote run 2 --reason "the board accepts the drop on 2019"
    """
    from fedspecial.flower import require_flower
    from fedspecial.runs import directory

    require_flower()
    from fedspecial.flower.app.task_control import check_federation
    from fedspecial.flower.governance.refused import promote as publish_by_hand

    check_federation(folder)
    with owner_only(), directory.claimed(folder):
        out.print(f"published {publish_by_hand(folder, task, reason)}", markup=False)


@operations.command("add-task")
@one_line_errors()
def add_task(folder: RunFolder, name: Annotated[str, typer.Argument(metavar="TASK")]) -> None:
    """Append a task to a federation. A running one learns it after the others, a finished one when it is started again.

    Example:  fedspecial flower add-task run ct-2025
    """
    _request(folder, "task_added", name, f"task {name} is added")


@operations.command("add-site")
@one_line_errors()
def add_site(folder: RunFolder, name: Annotated[str, typer.Argument(metavar="SITE")]) -> None:
    """Let a site join after the current round. Its key must be registered at the SuperLink.

    Example:  fedspecial flower add-site run east
    """
    _request(folder, "site_added", name, f"site {name} joins")


@operations.command("remove-site")
@one_line_errors()
def remove_site(folder: RunFolder, name: Annotated[str, typer.Argument(metavar="SITE")]) -> None:
    """Let a site leave after the current round. Its client number is not used again.

    Example:  fedspecial flower remove-site run east
    """
    _request(folder, "site_removed", name, f"site {name} leaves")


@operations.command("cancel-change")
@one_line_errors()
def cancel_change(folder: RunFolder, name: Annotated[str, typer.Argument(metavar="TASK_OR_SITE")]) -> None:
    """Cancel a task or site that was added or removed, if the server has not applied the change yet.

    Example:  fedspecial flower cancel-change run ct-2052
    """
    from fedspecial.flower.app.membership import cancel_change as cancel

    noun, verb = cancel(folder, name).split("_")
    out.print(f"cancelled: {noun} {name} is not {verb}", markup=False)


def _request(folder: Path, kind: Kind, name: str, what: str) -> None:
    from fedspecial.flower.app.membership import request_change

    with owner_only():
        request_change(folder, kind, name)
    out.print(f"{what} after the current round, or when the server is started again", markup=False)


@operations.command()
@one_line_errors()
def rollback(
    folder: RunFolder,
    to: Annotated[str, typer.Option(metavar="TASK/ROUND", help="2/3: after round 3 of task 2; 2/0: before its first.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is written to the audit log.")],
    members: Annotated[
        bool, typer.Option("--members", help="Also undo the sites and tasks that were added or removed since then.")
    ] = False,
) -> None:
    """Go back to an earlier round. The run must be stopped; start it again to continue from there.

    The audit log is not shortened. Published models of the undone tasks are moved to withdrawn/. Sites and tasks stay
    as they are now, and revoked keys stay revoked.

    Example:  fedspecial flower rollback run --to 2/3 --reason "site south sent wrong labels"
    """
    from fedspecial.flower import require_flower
    from fedspecial.runs import directory

    require_flower()
    from fedspecial.flower.app.rollback import parse_position, roll_back
    from fedspecial.flower.app.task_control import check_federation
    from fedspecial.flower.governance.audit import read_lines

    check_federation(folder)
    with owner_only(), directory.claimed(folder):
        withdrawn = roll_back(folder, parse_position(to), reason, members=members)
        *_, line = read_lines(folder / "audit.jsonl")
    for change in line.get("undone", ()):
        what = str(change["change"]).replace("_", " ")
        out.print(f"undone: {what}: {change['name']} (request it again if it is still wanted)", markup=False)
    for path in withdrawn:
        out.print(f"withdrawn: {path}", markup=False)
    out.print(f"the run is at {to}; start it again to continue from there", markup=False)


@operations.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@one_line_errors()
def supernode(context: typer.Context) -> None:
    """Start Flower's SuperNode with a warm process, so that a message does not wait for imports.

    All arguments are those of flower-supernode.

    Example:  fedspecial flower supernode --superlink link.example.org:443 --root-certificates ca.pem …
    """
    from fedspecial.flower import require_flower

    require_flower()
    from fedspecial.flower.ops.supernode_arguments import check_arguments
    from fedspecial.flower.ops.warm import start_supernode

    for text in check_arguments(context.args):
        err.print(f"WARNING: {text}", markup=False)
    start_supernode(context.args)


def read_key(key: str | None) -> str | None:
    """A public key, given as 64 hexadecimal digits or as a file that contains them."""
    if key is None:
        return None
    found = key
    if not _is_hash(key):
        with contextlib.suppress(OSError, ValueError):  # no such file, or not a text
            found = Path(key).read_text(encoding="ascii").strip()
    if not _is_hash(found):
        raise InputError(f"--key {key}: neither 64 hexadecimal digits nor a file that contains them (signing.pub)")
    return found.lower()


def _is_hash(text: str) -> bool:
    return re.fullmatch("[0-9a-fA-F]{64}", text) is not None


def read_head(head: str | None) -> str | None:
    """The hash of a line, given as such or as a site's file audit-head.json, whose signature is checked."""
    from fedspecial.flower.governance.audit import GENESIS

    if head is None:
        return None
    if not _is_hash(head):
        from fedspecial.flower.governance.signing import Receipt

        try:
            receipt = Receipt.of_json(json.loads(Path(head).read_bytes()))
        except (OSError, ValueError):
            raise InputError(
                f"--head {head}: neither a complete hash (64 hexadecimal digits) nor a file audit-head.json of a site"
            ) from None
        if not receipt.valid:
            raise InputError(f"--head {head}: its signature is not valid")
        head = receipt.head
    if head == GENESIS:
        raise InputError("--head 000…: this is the head of an empty log, which every log contains; it proves nothing")
    return head.lower()
