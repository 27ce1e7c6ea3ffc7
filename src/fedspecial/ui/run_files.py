"""The files of one run, read incrementally, and what the pages show of them."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedspecial.report.scale import title_of
from fedspecial.ui.audit_log import AuditTrail
from fedspecial.ui.files import Problem, UnreadableFileError, number_of, read_json_object, read_yaml_object, text_of
from fedspecial.ui.runlog import CURVES, RunLog
from fedspecial.ui.tail import TailReader

READ_SECONDS = 0.25
"""Longest time that one look at a run may take: a huge log is read in several steps, and the page shows how far."""
MAX_FILES = 300
MAX_METRICS = 30
RESULTS = ("acc", "bwt", "worst_drop", "forgetting", "rounds_to_best", "seconds_per_round", "seconds_between_tasks")
SIZES = ("bytes_up", "bytes_down", "bytes_once", "client_memory_bytes")


class RunFiles:
    """One run directory. `poll` reads what is new; the other methods say what the files contain as of then."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.log = RunLog()
        self._events = TailReader(root, folder / "events.jsonl", self._add_line, self._restart)
        self.audit = AuditTrail(root, folder)
        self._result = CachedObject(root, folder / "result.json")
        self._config = CachedObject(root, folder / "config.yaml")

    def _add_line(self, line: bytes) -> None:
        self.log.add_line(line)

    def _restart(self) -> None:
        self.log = RunLog()

    def poll(self) -> None:
        self._events.poll(time.monotonic() + READ_SECONDS)

    @property
    def share_read(self) -> float:
        return self._events.share

    def about(self) -> dict[str, Any]:
        """read: the part of the event log that was read; anchored: whether the method has an anchor at the server"""
        return {
            "clients": self.log.started.get("clients"),
            "anchored": self.log.anchored,
            "read": round(self._events.share, 2),
        }

    def problems(self) -> list[Problem]:
        found = [Problem(cached.path.name, cached.problem) for cached in (self._result, self._config) if cached.problem]
        if self._events.problem:
            found.append(Problem("events.jsonl", self._events.problem))
        found += [Problem("events.jsonl", text) for text in self.log.problems]
        if (more := self.log.num_problems - len(self.log.problems)) > 0:
            found.append(Problem("events.jsonl", f"{more} further lines cannot be used"))
        if self.log.position and not self.log.started:
            found.append(Problem("events.jsonl", "it does not begin with run_started, so its tasks are not known"))
        return found

    def settings(self) -> dict[str, Any]:
        """All settings as text, and `about` apart."""
        content = dict(self._config.get())
        about = content.pop("about", None)
        return {
            "settings": {text_of(key): _value_text(value) for key, value in list(content.items())[:500]},
            "about": {text_of(k): _value_text(v) for k, v in about.items()} if isinstance(about, dict) else {},
        }

    def commands(self) -> dict[str, str]:
        folder = _shown_path(self.folder)
        return {
            "repeat": f"fedspecial run {shlex.quote(f'{folder}/config.yaml')} out=NEW_FOLDER",
            "resume": f"fedspecial resume {shlex.quote(folder)}",
        }

    def matrix(self) -> dict[str, Any]:
        """The rows of the accuracy matrix that exist so far; None for tasks that are not finished, and for domains by
        which the run was extended later."""
        tasks, points, found = self.log.tasks, self.log.points, self.log.matrix
        rows = [
            None if (row := found.get(task)) is None else row + [None] * (len(tasks) - len(row))
            for task in range(1, len(points) + 1)
        ]
        return {"tasks": tasks, "points": points, "rows": rows}

    def results(self) -> dict[str, Any]:
        """From result.json if the run is finished, otherwise what the events so far give."""
        found = self._result.get()
        if found:
            return {name: number_of(found.get(name)) for name in (*RESULTS, *SIZES)} | {
                "final": True,
                "model_sha256": text_of(found.get("model_sha256")),
            }
        totals, rounds = self.log.totals, max(1, self.log.totals["rounds"])
        requests = max(1, totals["requests"])
        values = [value for value in self.log.last_accuracy.values() if value is not None]
        return {
            "final": False,
            "acc": number_of(sum(values) / len(values)) if values else None,
            "bwt": self._bwt_so_far(),
            "seconds_per_round": totals["seconds"] / rounds if totals["rounds"] else None,
            "bytes_up": totals["bytes_up"] / requests,
            "bytes_down": (totals["bytes_down"] - totals["bytes_once"]) / requests,
            "client_memory_bytes": totals["client_memory_bytes"],
        }

    def _bwt_so_far(self) -> float | None:
        """BWT of the tasks that are finished: the change since each was learned, at the end of the last of them."""
        done = sorted(self.log.matrix)
        if len(done) < 2 or self.log.points != self.log.tasks or done != list(range(1, len(done) + 1)):
            return None
        last = self.log.matrix[done[-1]]
        pairs = [(last[i], self.log.matrix[i + 1][i]) for i in range(len(done) - 1) if i < len(last)]
        drops = [after - before for after, before in pairs if after is not None and before is not None]
        return number_of(sum(drops) / len(drops)) if drops else None

    def counts(self) -> dict[str, Any]:
        totals = self.log.totals
        names = ("rounds", "held", "refused", "bytes_up", "bytes_down", "query_bytes_up", "query_bytes_down", "seconds")
        return {name: totals[name] for name in names}

    def curves(self) -> dict[str, Any]:
        """points: the domain that is learned in each span of `per_task` rounds; it can return in a later one"""
        names = [f"accuracy/{name}" for name in self.log.tasks]
        return {
            "per_task": self.log.rounds_per_task,
            "tasks": self.log.tasks,
            "points": self.log.points,
            **self.log.curves.to_json([*names, *CURVES]),
        }

    def warnings(self) -> list[dict[str, Any]]:
        """What the result warns of, and what the events say."""
        listed = self._result.get().get("warnings")
        found = [{"text": text_of(text), "count": 1} for text in listed[:50]] if isinstance(listed, list) else []
        return found + [{"text": text, "count": count} for text, count in self.log.warnings.items()]

    def further_metrics(self) -> list[dict[str, Any]]:
        """After the last task: the name of each metric beside the main one, and its value on every domain."""
        found, tasks = self._result.get().get("metrics"), len(self.log.tasks)
        lines = []
        for name, rows in list(found.items())[:MAX_METRICS] if isinstance(found, dict) else ():
            last = rows[-1] if isinstance(rows, list) and rows else None
            if isinstance(last, list) and not any(isinstance(value, list) for value in last):
                values = [number_of(value) for value in last[:tasks]]
                lines.append({"name": title_of(text_of(name)), "values": values + [None] * (tasks - len(values))})
        return lines

    def files(self) -> list[dict[str, Any]]:
        """The files of the directory, without the checkpoint, which is internal."""
        return [{"name": name, "size": size} for name, size in sorted(_files(self.folder))[:MAX_FILES]]


class CachedObject:
    """A JSON or YAML file that is read again when it changed."""

    def __init__(self, root: Path, path: Path) -> None:
        self.root, self.path = root, path
        self.problem: str | None = None
        self._seen: tuple[int, int, int] | None = None
        self._content: dict[str, Any] = {}

    def get(self) -> dict[str, Any]:
        try:
            status = os.lstat(self.path)
        except OSError:
            self._seen, self._content, self.problem = None, {}, None
            return self._content
        signature = (status.st_ino, status.st_size, status.st_mtime_ns)
        if signature != self._seen:
            read = read_yaml_object if self.path.suffix == ".yaml" else read_json_object
            try:
                self._content, self.problem = read(self.root, self.path), None
            except UnreadableFileError as error:
                self._content, self.problem = {}, str(error)
            self._seen = signature
        return self._content


def _files(folder: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries[: 10 * MAX_FILES]:
        if entry.is_dir(follow_symlinks=False) and prefix.count("/") < 2 and entry.name != "checkpoint":
            yield from _files(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            yield f"{prefix}{entry.name}", entry.stat(follow_symlinks=False).st_size


def _shown_path(folder: Path) -> str:
    """Relative to the working directory, where the commands are typed."""
    try:
        return str(folder.relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(folder)


def _value_text(value: Any) -> str:
    """A setting as it is written in YAML."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return text_of(value)
