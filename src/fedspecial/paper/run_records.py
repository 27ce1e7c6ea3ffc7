"""Records of finished runs: one small file per run in results/runs, which studies read in place of a run directory.

A record has the settings, versions, accuracy matrix, metrics and costs of a run, but neither model nor event log. It
belongs to a run with the same settings; a setting that did not exist when the record was written must have its default.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from fedspecial import methods
from fedspecial.config import Config, Settings
from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.paper.metrics import FinishedRun, from_events, second_task
from fedspecial.report.result import Result
from fedspecial.runs import directory
from fedspecial.runs.jobs import Job, identity

FOLDER = "runs"


@dataclass(frozen=True)
class RunRecords:
    """All records of a directory, by method and seed."""

    found: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]

    def find(self, job: Job) -> FinishedRun | None:
        """The recorded run with the settings of a job, or None."""
        candidates = self.found.get((job.method, job.seed), ())
        if not candidates:
            return None
        wanted = identity(job.settings)
        for content in candidates:
            if same_run(content["settings"], wanted, job.method):
                curve = tuple((first, second) for first, second in content["second_task"])
                result, measured = Result(**content["result"]), content.get("measured", {})
                return FinishedRun(job.folder, result, content["versions"], curve, measured)
        return None


def same_run(recorded: Mapping[str, Any], wanted: Mapping[str, Any], method: str) -> bool:
    """Whether these settings are the same; one that was not recorded, since it did not exist, must have its default."""
    default = _defaults(method)
    known = {**{key: default.get(key) for key in wanted}, **recorded}
    return _without_device(known) == _without_device(wanted)


def _without_device(settings: Mapping[str, Any]) -> Settings:
    """A study is the same on a CPU and on a GPU; the record says where it ran."""
    return {key: value for key, value in settings.items() if key != "device"}


@cache
def _defaults(method: str) -> Settings:
    """The defaults of the common settings and of the method's own, as they are stored in JSON."""
    own = {field.name: field.default for field in fields(methods.find(method)) if field.default is not MISSING}
    return dict(json.loads(json.dumps({**own, **Config().model_dump(mode="json")})))


def write_records(jobs: Iterable[Job], results: Path) -> list[Path]:
    """Write the records of all finished runs among the jobs that have none yet; returns their paths."""
    known = read_records(results)
    paths = (write_record(job, results) for job in jobs if known.find(job) is None)
    return [path for path in paths if path is not None]


def write_record(job: Job, results: Path) -> Path | None:
    """Write the record of a run, if it is finished; returns its path."""
    run = FinishedRun.read(job.folder)
    if run is None:
        return None
    content = {
        "settings": {**identity(job.settings), "device": directory.settings(job.folder).get("device", "cpu")},
        "versions": dict(run.versions),
        "data_sha256": directory.recorded_domains(job.folder),
        "result": run.result.to_json(),
        "measured": from_events(run),
        "second_task": [list(point[:2]) for point in second_task(run)],
    }
    path = results / FOLDER / f"{job.folder.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    write_atomic(path, f"{{\n{lines}\n}}\n".encode())
    return path


def read_records(results: Path) -> RunRecords:
    """All records of a directory of results; none if there is no such directory."""
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for path in sorted((results / FOLDER).glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            result = Result(**content["result"])
            mappings = all(isinstance(content[name], dict) for name in ("settings", "versions"))
            if not mappings or any(len(point) != 2 for point in content["second_task"]):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{path}: damaged or edited; delete it to run this run again") from None
        found.setdefault((result.method, result.seed), []).append(content)
    return RunRecords(found)
