"""Going back to an earlier round of a federation, at an operator's request and on record.

The audit log is never shortened: it gets a signed line "rollback", and the repeated rounds are further attempts in it.
So with differential privacy they are charged again. Models that were published from what is undone are moved to
withdrawn/, since they are no longer a part of the run's history.
"""

from __future__ import annotations

import json
from pathlib import Path

from fedspecial.core.files import write_atomic
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.engine.checkpoint import Position
from fedspecial.errors import InputError
from fedspecial.flower.governance.audit import AuditLog
from fedspecial.flower.governance.signing import open_signer

EVENT = "rollback"


def parse_position(text: str) -> Position:
    """``2/3``: after round 3 of task 2; ``2/0``: at the beginning of task 2."""
    task, slash, round = text.partition("/")
    if not (slash and task.isdigit() and round.isdigit() and int(task) >= 1):
        raise InputError(f"--to {text}: expected TASK/ROUND, such as 2/3 for the state after round 3 of task 2")
    return Position(int(task), int(round))


def roll_back(run: Path, target: Position, reason: str) -> list[Path]:
    """Make the state after an earlier round the current one; returns the models that were withdrawn.

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
    if target == current.position:
        raise InputError(f"--to {target.task}/{target.round}: the run is there already")
    found = checkpoints.load(folder, kept[target].relative_to(folder))
    assert found is not None
    published = sorted((run / "published").glob("task-*"), key=_task_of) if (run / "published").exists() else []
    undone = [path for path in published if _task_of(path) >= target.task]
    log = AuditLog(run / "audit.jsonl", open_signer(run))
    places = {"from": f"{current.position.task}/{current.position.round}", "to": f"{target.task}/{target.round}"}
    log.append(EVENT, {**places, "reason": reason, "vector": found.vector, "withdrawn": [path.name for path in undone]})
    withdrawn = []
    for path in undone:
        (run / "withdrawn").mkdir(exist_ok=True)
        withdrawn.append(path.rename(run / "withdrawn" / f"{path.name}-{log.head[:8]}"))
    _forget_later(run, target)
    for position, path in kept.items():
        if (position.task, position.round) > (target.task, target.round):
            path.unlink()
    write_atomic(folder / "checkpoint.json", kept[target].read_bytes())
    return withdrawn


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
