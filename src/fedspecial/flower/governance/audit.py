"""An append-only log in which every line seals the one before it.

    {"n": 7, "previous": <seal of line 6>, …, "seal": sha256(this line without its seal)}

An edited line breaks its own seal, a removed, inserted or moved one the `previous` of the next. Only a cut tail leaves
a chain that is whole: it is noticed by the seal of the last line, the *head*, which is kept elsewhere (in the
checkpoint and the model card). Nothing is ever taken away: a round that is played again is a second attempt, and a
line that a crash cut off stays and is named by the line after it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedspecial.errors import InputError
from fedspecial.flower.governance.round_record import RoundRecord

GENESIS = "0" * 64
NEEDED = {"round": {"task", "round", "outcome", "answers", "refusals"}, "border": {"refusals"}}
"""What a line of an event must have to be one of ours."""
_SEAL_LENGTH = len(',"seal":""}') + 64


@dataclass
class Report:
    """What was found in a log. `head` is the seal of the last line; `problems` name lines, counted from 1."""

    lines: int = 0
    head: str = GENESIS
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    attempts: Counter[tuple[int, int]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def sound(self) -> bool:
        return not self.problems


class AuditLog:
    """``AuditLog(path).append_round(record)``; opening an existing file goes on after its last line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        data = path.read_bytes()
        self._size = len(data)
        if data and _torn_end(data) and not _torn_end(data + b"\n"):
            self._write(b"\n")  # a crash took nothing but the end of the line
            data += b"\n"
        torn = _torn_end(data)
        report = _examine(data[: len(data) - len(torn)])
        if not report.sound:
            raise InputError(f"{path}: the log is not whole, and is not written to ({report.problems[0]})")
        self.head, self._number, self._attempts = report.head, report.lines, report.attempts
        if torn:
            end = b"" if torn.endswith(b"\n") else b"\n"
            self.append("recovered", {"torn": hashlib.sha256(torn + end).hexdigest()}, after=end)

    def append_round(self, record: RoundRecord) -> str:
        """Write one attempt at a round, with its number; returns the new head."""
        key = (record.task, record.round)
        self._attempts[key] += 1
        return self.append("round", {"attempt": self._attempts[key], **asdict(record)})

    def append(self, event: str, fields: Mapping[str, Any], *, after: bytes = b"") -> str:
        """Write one line, durably; returns the new head. `after` ends what a crash left unfinished."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        own = {"n": self._number + 1, "previous": self.head, "time": now, "event": event}
        body = json.dumps({**own, **fields}, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        seal = hashlib.sha256(body.encode()).hexdigest()
        self._write(after + f'{body[:-1]},"seal":"{seal}"}}\n'.encode())
        self.head, self._number = seal, self._number + 1
        return seal

    def _write(self, data: bytes) -> None:
        """In one write, so that a kill leaves the line or nothing; a power cut may still tear it."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(descriptor).st_size != self._size:
                raise InputError(f"{self.path}: another process has written to this log")
            written = os.write(descriptor, data)
            self._size += written
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if written != len(data):
            raise OSError(f"{self.path}: only {written} of {len(data)} bytes could be written")


def verify(path: Path, head: str | None = None) -> Report:
    """Whether a log is whole, and reaches `head` if that is given."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    seals: list[str] = []
    report = _examine(data, seals)
    if head is not None and head not in (*seals, GENESIS):
        report.problems.append(f"the head {head} is not in the log: its end was cut off, or it is another log")
    return report


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log that can be read, in order; whether they are sound is for `verify` to say."""
    for row in path.read_bytes().splitlines(keepends=True):
        line = _read(row)
        if line is not None:
            yield line


def _examine(data: bytes, seals: list[str] | None = None) -> Report:
    report, torn = Report(), b""
    for number, row in enumerate(data.splitlines(keepends=True), 1):
        line = _read(row)
        if line is None:
            torn += row
            continue
        if torn and line.get("torn") == hashlib.sha256(torn).hexdigest():
            report.notes.append(f"line {number - 1} was cut off by a crash")
        elif torn:
            report.problems.append(f"line {number - 1} cannot be read")
        torn = b""
        _check_line(report, number, row[:-1], line)
        _count(report, line)
        report.lines, report.head = line["n"], line["seal"]
        if seals is not None:
            seals.append(line["seal"])
    if torn:
        report.problems.append("the last line is cut off or cannot be read")
    return report


def _torn_end(data: bytes) -> bytes:
    """What stands after the last line that can be read: a write that a crash interrupted."""
    rows = data.splitlines(keepends=True)
    whole = max((number for number, row in enumerate(rows, 1) if _read(row) is not None), default=0)
    return b"".join(rows[whole:])


def _check_line(report: Report, number: int, raw: bytes, line: Mapping[str, Any]) -> None:
    sealed = hashlib.sha256(raw[:-_SEAL_LENGTH] + b"}").hexdigest()
    if sealed != line["seal"]:
        report.problems.append(f"line {number} was edited")
    if line["previous"] != report.head:
        report.problems.append(f"line {number} does not follow the one before it: lines were removed, moved or added")
    elif line["n"] != report.lines + 1:
        report.problems.append(f"line {number} bears the number {line['n']}")


def _count(report: Report, line: Mapping[str, Any]) -> None:
    if line["event"] == "border":
        report.refused.update(str(refusal["site"]) for refusal in line["refusals"])
    if line["event"] != "round":
        return
    report.attempts[line["task"], line["round"]] += 1
    report.outcomes[line["outcome"]] += 1
    report.answered.update(str(answer["site"]) for answer in line["answers"])
    report.refused.update(str(refusal["site"]) for refusal in line["refusals"])


def _read(row: bytes) -> dict[str, Any] | None:
    """A line, or None where it is none of ours or has no end."""
    try:
        line = json.loads(row if row.endswith(b"\n") else b"")
    except ValueError:
        return None
    known = {"n": int, "previous": str, "event": str, "seal": str}
    if not isinstance(line, dict) or not all(isinstance(line.get(key), kind) for key, kind in known.items()):
        return None
    return line if NEEDED.get(line["event"], set()) <= line.keys() else None
