"""Directories of studies without training: event logs like those of real runs, with accuracies chosen by the test."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedspecial.core.events import of_kind, read_events
from fedspecial.paper.grid import StudyRequest
from fedspecial.paper.planning import Absent, StudyPlan, plan
from fedspecial.paper.requests import add_requests
from fedspecial.report.result import result_of
from fedspecial.runs import directory
from fedspecial.runs.jobs import Job

Matrix = list[list[float]]
NO_RECORDS = Path("no records of searches")
ABSENT = ("vlcs", "dn4il", "glue", "cifar100", "digit10-resnet18", "digit10-transposed", "gas-drift", "spoken-digits")
TASKS = ["usps", "svhn", "femnist", "mnist"]


def draw(*parts: object) -> float:
    """A pseudo-random number between 0 and 1 that depends only on the arguments."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 2**32


def some_matrix(job: Job) -> Matrix:
    """A plausible accuracy matrix of a method that forgets."""
    keep = 0.3 + 0.5 * draw(job.method)
    return [
        [(0.9 if i == j else 0.9 * keep if j < i else 0.2) - 0.1 * draw(job.method, job.seed, i, j) for j in range(4)]
        for i in range(4)
    ]


def write_run(job: Job, sample: Path, matrix: Matrix, tasks: Sequence[str] = TASKS) -> None:
    """Write a finished run to the directory of the job, modelled on the events of a real run."""
    events = read_events(sample / "events.jsonl")
    started, done = of_kind(events, "run_started")[0], of_kind(events, "run_finished")[0]
    round_, finished = of_kind(events, "round")[0], of_kind(events, "task_finished")[0]
    folder = directory.create(dict(job.settings))
    rounds = int(job.settings["rounds"])
    lines: list[dict[str, Any]] = [
        {**started, "method": job.method, "seed": job.seed, "tasks": list(tasks), "rounds": rounds}
    ]
    for i, row in enumerate(matrix):
        for t in range(rounds):
            seen = {name: row[j] * (t + 1) / rounds for j, name in enumerate(tasks[: i + 1])}
            lines.append({**round_, "task": i + 1, "round": t, "accuracy": seen})
        lines.append({**finished, "task": i + 1, "name": tasks[i], "accuracy": row, "metrics": {}})
    lines.append(done)
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    result = json.dumps(result_of(lines).to_json())
    (folder / "result.json").write_text(result, encoding="utf-8")
    (folder / "README.md").write_text(f"# {job.method}\n", encoding="utf-8")


ON_DISK: Absent = {
    (scale, name): None for scale in ("paper", "cpu", "tiny") for name in ("digit10", "pacs", "digits-shift")
}


def planned_jobs(requests: Sequence[StudyRequest], out: Path) -> StudyPlan:
    """The plan on a machine that has the data of Digit-10 and PACS, and no other data."""
    missing = {(request.scale, name): f"{name}: data files not found" for request in requests for name in ABSENT}
    return plan(requests, out, None, {}, {**missing, **ON_DISK})


def write_studies(
    out: Path, sample: Path, requests: Sequence[StudyRequest], matrix: Callable[[Job], Matrix] = some_matrix
) -> list[Job]:
    """Write all runs of the requested studies; returns their jobs."""
    planned = planned_jobs(requests, out)
    add_requests(out, requests)
    for job in planned.jobs:
        write_run(job, sample, matrix(job))
    return list(planned.jobs)
