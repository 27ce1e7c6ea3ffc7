"""The runs of a folder, and for each one the line of the overview: read from the beginning and the end of its files."""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedspecial.ui.files import (
    Problem,
    UnreadableFileError,
    number_of,
    open_regular,
    read_json_object,
    read_yaml_object,
    text_of,
    whole_of,
)
from fedspecial.ui.run_files import RunFiles
from fedspecial.ui.runlog import MAX_TASKS, RunLog
from fedspecial.ui.state import RunState, Signature, signature_of, state_of

MAX_RUNS = 20_000
MAX_DEPTH = 8
MAX_OPEN = 32
"""How many runs are kept in memory with their curves."""
SCAN_SECONDS = 2.0
FINISHED_SECONDS = 5.0
HEAD, TAIL = 1 << 16, 1 << 16


@dataclass
class Row:
    """The line of the overview: `content` is JSON text. `signature` says from which versions of the files it is."""

    signature: Signature
    state: RunState
    content: str
    checked: float


@dataclass
class RunIndex:
    """All runs below `root`, by their path relative to it. Symbolic links are not followed."""

    root: Path
    notes: list[Problem] = field(default_factory=list)
    _runs: dict[str, Path] = field(default_factory=dict)
    _rows: dict[str, Row] = field(default_factory=dict)
    _open: OrderedDict[str, RunFiles] = field(default_factory=OrderedDict)
    _scanned: float = float("-inf")

    def __post_init__(self) -> None:
        self.root = Path(os.path.realpath(self.root))

    def runs(self) -> dict[str, Path]:
        if time.monotonic() - self._scanned > SCAN_SECONDS:
            self.notes = []
            self._runs = dict(sorted(self._scan()))
            self._rows = {name: row for name, row in self._rows.items() if name in self._runs}
            for name in [name for name in self._open if name not in self._runs]:
                del self._open[name]
            self._scanned = time.monotonic()
        return self._runs

    def rows(self) -> dict[str, str]:
        """Run → its line as JSON text. Finished runs are looked at less often."""
        now = time.monotonic()
        for name, folder in self.runs().items():
            row = self._rows.get(name)
            if row is not None and row.state.state == "finished" and now - row.checked < FINISHED_SECONDS:
                continue
            signature = signature_of(folder)
            state = state_of(self.root, folder, signature)
            if row is None or row.signature != signature or row.state != state:
                content = self._row(name, folder, state, signature)
                self._rows[name] = Row(signature, state, json.dumps(content), now)
            else:
                row.checked = now
        return {name: self._rows[name].content for name in self._runs}

    def open(self, name: str) -> RunFiles | None:
        """A run with its curves, read as far as it was read before; None if there is no such run."""
        folder = self.runs().get(name)
        if folder is None:
            return None
        if name not in self._open:
            self._open[name] = RunFiles(self.root, folder)
        self._open.move_to_end(name)
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        return self._open[name]

    def _scan(self) -> list[tuple[str, Path]]:
        found: list[tuple[str, Path]] = []
        folders = [(self.root, 0)]
        while folders:
            folder, depth = folders.pop()
            try:
                with os.scandir(folder) as entries:
                    inside = [(e.name, e.is_dir(follow_symlinks=False), e.is_symlink()) for e in entries]
            except OSError as error:
                self.notes.append(Problem(self._name(folder), f"it cannot be read ({error.strerror})"))
                continue
            names = {name for name, _, _ in inside}
            if names & {"events.jsonl", "audit.jsonl"} or ("config.yaml" in names and self._has_settings(folder)):
                if len(found) == MAX_RUNS:
                    self.notes.append(Problem(".", f"it contains more than {MAX_RUNS} runs; the others are not shown"))
                    return found
                found.append((self._name(folder), folder))
                continue
            linked = sorted(name for name, _, link in inside if link and not name.startswith("."))
            if linked:
                text = "it is a symbolic link, which this page does not follow"
                self.notes += [Problem(self._name(folder / name), text) for name in linked[:20]]
            if depth < MAX_DEPTH:
                folders += [(folder / name, depth + 1) for name, is_dir, _ in inside if is_dir and name[0] != "."]
        return found

    def _name(self, folder: Path) -> str:
        return folder.relative_to(self.root).as_posix().encode("utf-8", "replace").decode()

    def _has_settings(self, folder: Path) -> bool:
        """Whether config.yaml is that of a run: many other projects have a file of this name."""
        try:
            with open_regular(self.root, folder / "config.yaml") as file:
                return b"\nabout:" in file.read(HEAD)
        except UnreadableFileError:
            return False

    def _row(self, name: str, folder: Path, state: RunState, signature: Signature) -> dict[str, Any]:
        log = RunLog()
        problems: list[Problem] = []
        final = self._final_metrics(folder, problems) if signature["result.json"] else {}
        try:
            self._read_ends(folder / "events.jsonl", log, whole=not final)
            if log.task > len(log.points):  # the event of the extension is somewhere between the two ends
                log = RunLog()
                self._read_ends(folder / "events.jsonl", log, whole=True, domains=self._domains(folder, problems))
        except UnreadableFileError as error:
            if signature["events.jsonl"]:
                problems.append(Problem("events.jsonl", str(error)))
        if not log.started and signature["config.yaml"]:
            log.started = self._from_settings(folder, problems)
        if state.state == "finished":
            log.position = log.total_rounds
        problems += [Problem("events.jsonl", text) for text in log.problems]
        left = max(0, log.total_rounds - log.position)
        recent = log.recent_seconds
        return {
            **(final or _accuracy_so_far(log)),
            "run": name,
            **{key: text_of(log.started.get(key)) for key in ("benchmark", "method")},
            "seed": whole_of(log.started.get("seed")),
            "metric": {"title": log.scale.title, "percent": log.scale.in_percent},
            "state": state.state,
            "reason": state.reason,
            "done": log.position,
            "total": log.total_rounds,
            "seconds_left": left * sum(recent) / len(recent) if state.state == "running" and recent and left else None,
            "modified": state.modified,
            "federation": signature["audit.jsonl"] is not None,
            "problems": [problem.to_json() for problem in problems[:5]],
        }

    def _final_metrics(self, folder: Path, problems: list[Problem]) -> dict[str, Any]:
        """ACC and BWT of a finished run; empty without a readable result."""
        try:
            result = read_json_object(self.root, folder / "result.json")
        except UnreadableFileError as error:
            problems.append(Problem("result.json", str(error)))
            return {}
        return {"acc": number_of(result.get("acc")), "bwt": number_of(result.get("bwt")), "final": True}

    def _read_ends(self, path: Path, log: RunLog, *, whole: bool, domains: list[str] | None = None) -> None:
        """The first line, and of an unfinished run the last lines: enough for the overview.

        domains: those of the run by now, if it was extended
        """
        with open_regular(self.root, path) as file:
            first = file.readline(HEAD)
            if not first.endswith(b"\n"):
                return
            log.add_line(first[:-1])
            log.tasks = domains or log.tasks
            if not whole:
                return
            size = os.fstat(file.fileno()).st_size
            if size > len(first) + TAIL:
                file.seek(size - TAIL)
                file.readline(TAIL)
            rest = file.read(TAIL)
            for line in rest.split(b"\n")[:-1]:
                if line.startswith((b'{"event": "round"', b'{"event": "task_finished"')):
                    log.add_line(line)

    def _domains(self, folder: Path, problems: list[Problem]) -> list[str]:
        """The domains of a run, which config.yaml lists with the hash of each one's data."""
        about = self._from_settings(folder, problems).get("about")
        data = about.get("data") if isinstance(about, dict) else None
        return [text_of(name) for name in list(data)[:MAX_TASKS]] if isinstance(data, dict) else []

    def _from_settings(self, folder: Path, problems: list[Problem]) -> dict[str, Any]:
        """The settings of a run, which say what one that has not started yet will be."""
        try:
            return read_yaml_object(self.root, folder / "config.yaml")
        except UnreadableFileError as error:
            problems.append(Problem("config.yaml", str(error)))
            return {}


def _accuracy_so_far(log: RunLog) -> dict[str, Any]:
    """Mean accuracy on the domains seen so far, after the last evaluated round."""
    values = [value for value in log.last_accuracy.values() if value is not None]
    return {"acc": number_of(sum(values) / len(values)) if values else None, "bwt": None, "final": False}
