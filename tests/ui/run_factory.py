"""Run directories and federations with known numbers, written without training anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedspecial.core.events import (
    CertificateIssued,
    Event,
    EventLog,
    RoundFinished,
    RunFinished,
    RunStarted,
    TaskFinished,
    TaskStarted,
    UpdateRefused,
)
from fedspecial.flower.governance.audit import AuditLog
from fedspecial.flower.governance.round_record import Refusal, RoundRecord, UpdateRecord
from fedspecial.report.result import result_of
from fedspecial.runs import directory

TASKS = ("paper", "neon")
ACCURACY = {"name": "accuracy", "low": 0.0, "high": 1.0}


def started(
    method: str = "special",
    seed: int = 25,
    tasks: Sequence[str] = TASKS,
    rounds: int = 4,
    metric: dict[str, Any] = ACCURACY,
) -> RunStarted:
    shape = (rounds, 8, 100, 10, "layout", {})
    return RunStarted(method, {"lam": 0.25}, "digits-shift", seed, list(tasks), *shape, metric=metric)


def round_finished(task: int, number: int, accuracy: dict[str, float] | None = None, **fields: Any) -> RoundFinished:
    anchored = task > 1
    values: dict[str, Any] = {
        **{"clients": [number % 8, (number + 3) % 8], "num_accepted": 2, "held": False, "clients_per_round": 2},
        **{"server_lr": 1.0, "client_lr": 0.1, "mean_steps": 5.0, "samples": 100, "loss": 1 / (number + 1)},
        **{"delta_norm": 0.5, "max_client_delta": 0.7, "drift": 0.3 if anchored else None},
        **{"lam": 0.25 if anchored else None, "mu": None, "bytes_up": 2000, "bytes_down": 2400, "bytes_once": 400},
        **{"client_memory_bytes": 5000, "client_memory_paper_bytes": 4000, "seconds": 2.0},
    }
    return RoundFinished(task, number, **values | {"accuracy": accuracy or {}} | fields)


def events(*, tasks: Sequence[str] = TASKS, rounds: int = 4, **about: Any) -> Iterable[Event]:
    """A complete run: the accuracy on task k after round t of task i is known."""
    yield started(tasks=tasks, rounds=rounds, **about)
    for task, name in enumerate(tasks, 1):
        yield TaskStarted(task, name, 10, 100)
        for number in range(rounds):
            seen = {other: 0.9 - 0.1 * (task - k) for k, other in enumerate(tasks[:task], 1)}
            yield round_finished(task, number, seen)
        summary = {"anchored": task > 1, "status": "holds", "drift": 0.3, "recursion_bound": 0.4, "max_ratio": 0.9}
        yield CertificateIssued(task, summary, [{"round": number} for number in range(rounds)])
        yield TaskFinished(task, name, [0.9 - 0.1 * abs(task - k) for k in range(1, len(tasks) + 1)])
    yield RunFinished("ab" * 32)


NEWER = [
    {"event": "task_detected", "task": 1, "round": 1, "at": 1, "begun": 2, "share": 0.6},
    {"event": "rolled_back", "task": 1, "to_round": 0, "reason": {"site": None}},
    {"event": "evaluation", "task": 1, "round": 1, "values": [None, {"neon": None}]},
    {"event": "update_received", "task": 1, "version": 3, "client": "north"},
]
"""Events of kinds that this version does not know."""


def write_newer_run(folder: Path) -> Path:
    """A run of a later version: unknown events and fields, and null where a domain is not known yet."""
    run = write_run(folder, stop_after=3)
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    known = lines[-1] | {"anchored": None, "staleness": [1, None]}
    for accuracy in ({"paper": 0.7, "neon": None}, {"paper": 0.8, "neon": None}, None):
        lines += [*NEWER, {**known, "round": 1, "accuracy": accuracy, "loss": None, "client_lr": None}]
    nothing = dict.fromkeys(("status", "drift", "recursion_bound", "max_ratio", "lam"))
    lines.append({"event": "certificate", "task": 1, "summary": {"anchored": True, **nothing}, "rounds": []})
    lines.append({"event": "task_finished", "task": 1, "name": "paper", "accuracy": [0.8, None], "metrics": None})
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    unfinished = {"acc": None, "bwt": None, "matrix": [[0.8, None], [None, None]], "warnings": None, "later": {"a": []}}
    (run / "result.json").write_text(json.dumps(unfinished))
    return run


def write_run(folder: Path, *, stop_after: int | None = None, extra: Iterable[Event] = (), **about: Any) -> Path:
    """A run directory; with `stop_after`, one that was stopped after this many events."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    settings = {"benchmark": "digits-shift", "method": about.get("method", "special"), "seed": about.get("seed", 25)}
    directory.create({**settings, "lam": 0.25, "out": str(folder)})
    log = EventLog(folder / "events.jsonl")
    found = list(events(**about))[:stop_after]
    for event in (*found, *extra):
        log.write(event)
    log.close()
    if stop_after is None:
        lines = (folder / "events.jsonl").read_text().splitlines()
        result = result_of([json.loads(line) for line in lines])
        (folder / "result.json").write_text(json.dumps(result.to_json()))
    return folder


def append(folder: Path, *new: Event) -> None:
    """Continue the event log of a run, as the run itself does."""
    path = folder / "events.jsonl"
    log = EventLog(path, cut=path.stat().st_size)
    for event in new:
        log.write(event)
    log.close()


def write_federation(folder: Path, sites: Sequence[str] = ("north", "south", "west")) -> Path:
    """A stopped federation: west never sends a usable reply."""
    refused = UpdateRefused(1, 0, 2, "no reply within 60 s")
    write_run(folder, stop_after=6, extra=[refused])
    log = AuditLog(folder / "audit.jsonl")
    log.append("started", {"format": 2, "task": 1, "round": 0, "model": "0", "sites": list(sites)})
    for number in range(4):
        updates = [UpdateRecord(site, 1000, "ab" * 32, 0.5) for site in sites[:2]]
        refusals = [Refusal(sites[2], "no reply within 60 s")]
        log.append_round(RoundRecord(1, number, list(sites), "completed", "a", "b", updates, refusals, 0.1 * number))
    (folder / "promotion").mkdir()
    domain = {"domain": "paper", "status": "dropped", "reason": "accuracy dropped by 7.00 points", "drop": 0.07}
    decision = {"publish": False, "reason": "not published: paper", "domains": [domain], "limits": {}, "task": 2}
    (folder / "promotion" / "task-2.json").write_text(json.dumps(decision))
    return folder
