"""The sites and tasks of a federation, which may change while it lives. Needs neither Flower nor torch.

``federation.json`` lists sites and tasks in the order in which they came. A position in the list of sites is the client
number for ever: a site that left keeps its number and is listed in `removed`. The lists only grow, except in a rollback
that undoes changes. An operator's request is a file in
``changes/``; the server applies requests between rounds, or when it is started again, each as a line of the audit log.
Before it does, it renames the file to ``*.applying.json``. Until then the request can be cancelled.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.app.task_control import check_federation
from fedspecial.flower.governance.site_settings import check_plain_names
from fedspecial.runs import directory

FORMAT = 3
"""Version of federation.json. Format 2 had no removed sites and is read, too."""
FILE, CHANGES = "federation.json", "changes"
_APPLYING = ".applying.json"
Kind = Literal["task_added", "site_added", "site_removed"]
_KINDS: dict[Kind, str] = {"task_added": "tasks", "site_added": "sites", "site_removed": "removed"}
"""Kind of change → the list that it makes longer."""


class MembershipChangedError(Exception):
    """Sites or tasks are to be changed; the server goes on from its checkpoint with the new lists."""


@dataclass(frozen=True)
class Membership:
    """The content of federation.json; `run` is the identifier of the run."""

    run: str
    sites: tuple[str, ...]
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    removed: tuple[str, ...] = ()

    @staticmethod
    def of(plan: FederationPlan) -> Membership:
        classes = plan.data.classes if plan.data else ()
        return Membership(secrets.token_hex(8), plan.sites, plan.tasks, classes, plan.removed)

    @staticmethod
    def read(folder: Path) -> Membership:
        found = _read_object(folder / FILE, "run")
        if (version := found.pop("format", 1)) not in (2, FORMAT):
            raise InputError(
                f"out={folder}: it contains a federation of format {version}; this version of fedspecial reads the "
                f"formats 2 and {FORMAT}; choose another folder"
            )
        names = (tuple(found.get(key, ())) for key in ("sites", "tasks", "classes", "removed"))
        return Membership(str(found["run"]), *names)

    def write(self, folder: Path) -> None:
        write_atomic(folder / FILE, json.dumps({"format": FORMAT, **asdict(self)}).encode())

    def apply(self, plan: FederationPlan, folder: Path) -> FederationPlan:
        """The plan with the sites and tasks as they are now; the run config may name those of the start."""
        given = {"sites": plan.sites, "tasks": plan.tasks, "classes": plan.data.classes if plan.data else ()}
        for key, names in given.items():
            known = getattr(self, key)
            if known[: len(names)] != names or (key == "classes" and known != names):
                shown = ",".join(names)
                raise InputError(f"out={folder}: it contains a run with {key}={','.join(known)}, not {key}={shown}")
        if self.sites == plan.sites and not self.removed:
            return replace(plan, tasks=self.tasks)
        settings = {key: value for key, value in plan.settings.items() if key != "clients"}
        return replace(plan, sites=self.sites, tasks=self.tasks, removed=self.removed, settings=settings)

    def first(self, sites: int, tasks: int, removed: int) -> Membership:
        """When there were so many of each, since the lists only grow."""
        return replace(self, sites=self.sites[:sites], tasks=self.tasks[:tasks], removed=self.removed[:removed])

    def changes_since(self, earlier: Membership) -> list[dict[str, str]]:
        return [
            {"change": kind, "name": name}
            for kind, key in _KINDS.items()
            for name in getattr(self, key)[len(getattr(earlier, key)) :]
        ]

    def changed(self, kind: Kind, name: str) -> Membership:
        """With one task or site more, or one site less; raises InputError where this is impossible."""
        if kind == "task_added":
            if name in self.tasks:
                raise InputError(f"task '{name}': the federation has it already ({', '.join(self.tasks)})")
            return replace(self, tasks=(*self.tasks, name))
        if kind == "site_added":
            if name in self.sites:
                left = " and it left; its number is not used again" if name in self.removed else ""
                raise InputError(f"site '{name}': the federation has this name already{left}; give another one")
            return replace(self, sites=(*self.sites, name))
        if name not in self.sites or name in self.removed:
            present = ", ".join(site for site in self.sites if site not in self.removed)
            raise InputError(f"site '{name}': not a site of this federation (its sites: {present})")
        if len(self.sites) - len(self.removed) == 1:
            raise InputError(f"site '{name}': it is the last site of the federation")
        return replace(self, removed=(*self.removed, name))


def request_change(folder: Path, kind: Kind, name: str) -> None:
    """Ask the server for a change; it is checked against the federation and the requests that wait already."""
    check_federation(folder)
    check_plain_names("tasks" if kind == "task_added" else "sites", (name,))
    expected = Membership.read(folder)
    if not expected.tasks:
        raise InputError(
            f"{folder}: this federation is a trial, which divides a benchmark among its sites; one with data of its "
            "sites can change"
        )
    if kind == "task_added" and (detect := directory.settings(folder).get("detect", "none")) != "none":
        raise InputError(
            f"detect={detect}: no task can be added to {folder}, because its stream ends with its tasks; name all of "
            "them at the start"
        )
    _expected(expected, _requests(folder)).changed(kind, name)
    content = {"id": secrets.token_hex(8), "change": kind, "name": name}
    (folder / CHANGES).mkdir(exist_ok=True)
    write_atomic(folder / CHANGES / f"{time.time_ns():020d}.json", json.dumps(content).encode())


def cancel_change(folder: Path, name: str) -> Kind:
    """Remove the last request for this task or site that the server has not begun to apply."""
    check_federation(folder)
    requests = _requests(folder)
    waiting = [(path, request) for path, request in requests if not path.name.endswith(_APPLYING)]
    found = next(((path, request) for path, request in reversed(waiting) if request["name"] == name), None)
    if found is None:
        names = ", ".join(request["name"] for _, request in waiting) or "none"
        raise InputError(
            f"'{name}': no change with this name waits (waiting: {names}); one that was applied is undone by "
            "`fedspecial flower rollback … --members`"
        )
    try:
        _expected(Membership.read(folder), [request for request in requests if request != found])
    except InputError as error:
        raise InputError(f"'{name}': a later request needs this one; cancel that one first ({error})") from None
    path, request = found
    try:
        path.unlink()
    except FileNotFoundError:
        raise InputError(f"'{name}': the server applies this change at this moment; it cannot be cancelled") from None
    kind: Kind = request["change"]
    return kind


def check_unchanged(folder: Path) -> None:
    """Raise `MembershipChangedError` if a request waits."""
    if _requests(folder):
        raise MembershipChangedError


def apply_changes(
    folder: Path, found: Membership, audited: Callable[[], set[str]], append: Callable[[str, dict[str, Any]], None]
) -> Membership:
    """Apply the requests that wait, each with a line of the audit log, which a crash in between does not repeat.

    audited: the identifiers of the changes that the log has · append: writes a line
    """
    for path, request in _requests(folder):
        kind, name = request["change"], request["name"]
        new = found
        if not _is_applied(found, kind, name):
            new = found.changed(kind, name)
        if (claimed := _claim(path)) is None:
            continue
        number = {"task": new.tasks.index(name) + 1} if kind == "task_added" else {"client": new.sites.index(name)}
        if request["id"] not in audited():
            append(kind, {"id": request["id"], "name": name, **number})
        new.write(folder)
        claimed.unlink()
        found = new
    return found


def _claim(path: Path) -> Path | None:
    """Rename a request, so that it cannot be cancelled any more; None if it was cancelled just before."""
    if path.name.endswith(_APPLYING):  # by a server that was killed since
        return path
    try:
        return path.rename(path.with_suffix(_APPLYING))
    except FileNotFoundError:
        return None


def _is_applied(found: Membership, kind: Kind, name: str) -> bool:
    return name in getattr(found, _KINDS[kind])


def _expected(found: Membership, requests: list[tuple[Path, dict[str, Any]]]) -> Membership:
    """The sites and tasks after these requests."""
    for _, request in requests:
        if not _is_applied(found, request["change"], request["name"]):
            found = found.changed(request["change"], request["name"])
    return found


def _requests(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for path in sorted((folder / CHANGES).glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # cancelled, or renamed, since the folder was listed
            found.append((path, _read_object(path, "id", "change", "name")))
    return found


def _read_object(path: Path, *required: str) -> dict[str, Any]:
    """A file of this module; one that was edited by hand or cut off is named."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(content.get(key), str) for key in required):
        raise InputError(f"{path}: cut off or changed (expected a JSON object with {', '.join(required)}); restore it")
    return content
