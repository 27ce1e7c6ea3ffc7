"""Going back to an earlier round of a federation, at an operator's request and on record.

The audit log is never shortened: it gets a signed line "rollback", and the repeated rounds are further attempts in it.
So with differential privacy they are charged again. Models that were published from what is undone are moved to
withdrawn/, since they are no longer a part of the run's history.

What goes back is what was learned: the model, the anchor, the state of the method, the history of the gate. Decisions
of operators stay in force: a site that was removed because of its updates must not return with the model before them.
With `members`, sites and tasks go back, too. Revoked keys stay revoked in any case.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedspecial.core.files import write_atomic
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.engine.checkpoint import Checkpoint, Position
from fedspecial.errors import InputError
from fedspecial.flower.app.membership import Membership
from fedspecial.flower.governance.audit import AuditLog
from fedspecial.flower.governance.signing import open_signer
from fedspecial.runs import directory

EVENT = "rollback"


def parse_position(text: str) -> Position:
    """``2/3``: after round 3 of task 2; ``2/0``: at the beginning of task 2."""
    task, slash, round = text.partition("/")
    if not (slash and task.isdigit() and round.isdigit() and int(task) >= 1):
        raise InputError(f"--to {text}: expected TASK/ROUND, such as 2/3 for the state after round 3 of task 2")
    return Position(int(task), int(round))


def roll_back(run: Path, target: Position, reason: str, *, members: bool = False) -> list[Path]:
    """Make the state after an earlier round the current one; returns the models that were withdrawn.

    members: the sites and tasks of that round, too; changes that were requested and not applied yet still wait

    The caller holds the lock of the run directory. The checkpoint is replaced last, so that an interrupted rollback can
    be repeated.
    """
    reason = " ".join(reason.split())
    if not reason:
        raise InputError("--reason: say why the run goes back")
    folder = run / "checkpoint"
    kept = checkpoints.history(folder)
    current = checkpoints.load(folder)
    if current is None or target not in kept:
        known = ", ".join(f"{p.task}/{p.round}" for p in kept) or "none"
        raise InputError(f"--to {target.task}/{target.round}: there is no checkpoint of it; kept are: {known}")
    place = f"{target.task}/{target.round}"
    found = checkpoints.load(folder, kept[target].relative_to(folder))
    assert found is not None
    now, then = Membership.read(run), members_then(run, found)
    if members and then is None:
        raise InputError(f"--members: the checkpoint of {place} does not say which sites there were")
    # A task or a site that was added by mistake is undone without losing a round.
    if target == current.position and not (members and then != now):
        raise InputError(f"--to {place}: the run is there already")
    changes = {"undone" if members else "kept": now.changes_since(then)} if then is not None else {}
    published = sorted((run / "published").glob("task-*"), key=_task_of) if (run / "published").exists() else []
    undone = [path for path in published if _task_of(path) >= target.task]
    log = AuditLog(run / "audit.jsonl", open_signer(run))
    places = {"from": f"{current.position.task}/{current.position.round}", "to": place}
    about = {"reason": reason, "vector": found.vector, "withdrawn": [path.name for path in undone]}
    log.append(EVENT, {**places, **about, **changes})
    withdrawn = []
    for path in undone:
        (run / "withdrawn").mkdir(exist_ok=True)
        withdrawn.append(path.rename(run / "withdrawn" / f"{path.name}-{log.head[:8]}"))
    _forget_later(run, target)
    if members and then is not None:
        _set_members(run, then)
    for position, path in kept.items():
        if (position.task, position.round) > (target.task, target.round):
            path.unlink()
    write_atomic(folder / "checkpoint.json", kept[target].read_bytes())
    return withdrawn


def members_then(run: Path, checkpoint: Checkpoint) -> Membership | None:
    """The sites and tasks with which a checkpoint was written; None for one of an older version."""
    counts = checkpoint.payloads.get("members")
    return Membership.read(run).first(**counts) if counts else None


def _set_members(run: Path, then: Membership) -> None:
    """config.yaml lists the hash of every task; the numbers of clients in it are written when the run goes on."""
    then.write(run)
    about = directory.about(run)
    data = {name: sha256 for name, sha256 in about.get("data", {}).items() if name in then.tasks or not then.tasks}
    kept = {key: value for key, value in about.items() if key != "format"}
    directory.write_settings(run, directory.settings(run), {**kept, "data": data})


def _forget_later(run: Path, target: Position) -> None:
    """Remove what only says that later rounds are done: their numbers stay in the audit log."""
    for name in ("finished.json", "result.json", "next-task"):
        (run / name).unlink(missing_ok=True)
    path = run / "promotion-history.json"
    if path.exists():
        stored = json.loads(path.read_bytes())
        write_atomic(path, json.dumps(dict(list(stored.items())[: target.task - 1])).encode())


def _task_of(path: Path) -> int:
    number = path.name.partition("-")[2]
    return int(number) if number.isdigit() else 0
