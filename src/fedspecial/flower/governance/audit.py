"""An append-only log in which each line contains the hash of the line before it.

    {"n": 7, "previous": <hash of line 6>, …, "signature": <of the line so far>, "hash": sha256(line without its hash)}

An edited line no longer matches its own hash. A removed, inserted or moved line no longer matches the `previous` of the
next one. Only a truncated log still has a consistent chain. It is detected by the hash of the last line, the *head*,
which is also stored in the checkpoint, in the model card and, signed, at every site. Every line is signed with the
server's Ed25519 key, so that nobody else can write a consistent log; the lines "started" name the public key. Lines are
never removed: a repeated round is a second attempt, and a line that a crash cut off stays in the file and is named by
the line after it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedspecial.errors import InputError
from fedspecial.flower.governance.round_record import RoundRecord
from fedspecial.flower.governance.signing import Receipt, Signer, can_check, is_signed
from fedspecial.flower.logs import one_line

FORMAT = 3
"""Version of the log; the lines "started" carry it."""
GENESIS = "0" * 64
REQUIRED: dict[str, dict[str, type]] = {
    "round": {"task": int, "round": int, "outcome": str, "updates": list, "refusals": list},
    "task_boundary": {"refusals": list},
}
"""Fields without which a line of this event is not readable. The lists contain objects with the name of a site."""
_HASH_LENGTH = len(',"hash":""}') + 64
_SIGNATURE_LENGTH = len(',"signature":""}') + 128


@dataclass
class AuditReport:
    """What `verify` found. `head` is the hash of the last line; `problems` name lines, counted from 1.

    key:    the public key with which the log is signed; "" if it is not
    signed: number of lines with a valid signature; 0 where signatures cannot be checked
    """

    lines: int = 0
    head: str = GENESIS
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    attempts: Counter[tuple[int, int]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    updates: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    key: str = ""
    signed: int = 0

    @property
    def intact(self) -> bool:
        return not self.problems


class AuditLog:
    """``AuditLog(path).append_round(record)``. An existing file is continued after its last line.

    signer: signs every line; without it the log is only a chain of hashes
    """

    def __init__(self, path: Path, signer: Signer | None = None) -> None:
        self.path, self._signer = path, signer
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        data = path.read_bytes()
        _check_format(path, data)
        self._size = len(data)
        if data and _unreadable_end(data) and not _unreadable_end(data + b"\n"):
            self._write(b"\n")  # the crash cut off only the newline
            data += b"\n"
        cut_off = _unreadable_end(data)
        report = _check(data[: len(data) - len(cut_off)])
        if not report.intact:
            raise InputError(
                f"{path}: the audit log is not intact, so nothing is appended to it ({report.problems[0]})"
            )
        if report.key and report.key != (signer.public if signer else ""):
            raise InputError(
                f"{path}: it is signed with another key ({report.key[:16]}…), so nothing is appended to it; restore "
                "signing.key from a copy"
            )
        self.head, self._number, self._attempts = report.head, report.lines, report.attempts
        if cut_off:
            end = b"" if cut_off.endswith(b"\n") else b"\n"
            self.append("recovered", {"cut_off": hashlib.sha256(cut_off + end).hexdigest()}, prefix=end)

    def append_round(self, record: RoundRecord) -> str:
        """Write one attempt at a round, with its attempt number; returns the new head."""
        key = (record.task, record.round)
        self._attempts[key] += 1
        return self.append("round", {"attempt": self._attempts[key], **asdict(record)})

    def append(self, event: str, fields: Mapping[str, Any], *, prefix: bytes = b"") -> str:
        """Write and sync one line; returns the new head. `prefix` ends a line that a crash left unfinished."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        common = {"n": self._number + 1, "previous": self.head, "time": now, "event": event}
        body = json.dumps({**common, **fields}, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        if self._signer is not None:
            body = f'{body[:-1]},"signature":"{self._signer.sign(body.encode())}"}}'
        digest = hashlib.sha256(body.encode()).hexdigest()
        self._write(prefix + f'{body[:-1]},"hash":"{digest}"}}\n'.encode())
        self.head, self._number = digest, self._number + 1
        return digest

    def receipt(self, run: str) -> Receipt | None:
        """The head, signed, for the sites; None without a key."""
        return Receipt.of(self._signer, run, self._number, self.head) if self._signer else None

    def _write(self, data: bytes) -> None:
        """A single write, so that a killed process leaves all of the line or none; only a power cut can split it."""
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


def verify(path: Path, head: str | None = None, key: str | None = None) -> AuditReport:
    """Check the chain of hashes and the signatures; that the log contains `head`, and that it is signed with `key`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    _check_format(path, data)
    hashes: list[str] = []
    report = _check(data, hashes)
    if key is not None and report.key != key:
        report.problems.append("it is signed with another key" if report.key else "it is not signed")
    if head is not None and head not in hashes:
        report.problems.append(f"the head {head} is not in the log: the log was truncated, or it is a different log")
    return report


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The readable lines of a log, in order, unchecked; `verify` checks them."""
    for row in path.read_bytes().splitlines(keepends=True):
        line = _parse(row)
        if line is not None:
            yield line


def _check_format(path: Path, data: bytes) -> None:
    """Version 1 named the hash of a line "seal"."""
    first = data.split(b"\n", 1)[0]
    if first.startswith(b'{"n":1,') and first.endswith(b'"}') and first[-_HASH_LENGTH:].startswith(b',"seal":"'):
        raise InputError(f"{path}: it is an audit log of format 1; this version of fedspecial reads format {FORMAT}")


def _check(data: bytes, hashes: list[str] | None = None) -> AuditReport:
    report, unreadable = AuditReport(), b""
    for number, row in enumerate(data.splitlines(keepends=True), 1):
        line = _parse(row)
        if line is None:
            unreadable += row
            continue
        if unreadable and line.get("cut_off") == hashlib.sha256(unreadable).hexdigest():
            report.notes.append(f"line {number - 1} was cut off by a crash")
        elif unreadable:
            report.problems.append(f"line {number - 1} cannot be read")
        unreadable = b""
        _check_line(report, number, row[:-1], line)
        _check_signature(report, number, row[:-1], line)
        _count(report, line)
        report.lines, report.head = line["n"], line["hash"]
        if hashes is not None:
            hashes.append(line["hash"])
    if unreadable:
        report.problems.append("the last line is cut off or cannot be read")
    return report


def _unreadable_end(data: bytes) -> bytes:
    """The bytes after the last readable line: a write that a crash interrupted."""
    rows = data.splitlines(keepends=True)
    readable = max((number for number, row in enumerate(rows, 1) if _parse(row) is not None), default=0)
    return b"".join(rows[readable:])


def _check_line(report: AuditReport, number: int, raw: bytes, line: Mapping[str, Any]) -> None:
    computed = hashlib.sha256(raw[:-_HASH_LENGTH] + b"}").hexdigest()
    if computed != line["hash"]:
        report.problems.append(f"line {number} was edited")
    if line["previous"] != report.head:
        report.problems.append(f"line {number} does not follow the one before it: lines were removed, moved or added")
    elif line["n"] != report.lines + 1:
        report.problems.append(f"line {number} has the number {line['n']}")


def _check_signature(report: AuditReport, number: int, raw: bytes, line: Mapping[str, Any]) -> None:
    """The first line "started" that names a key begins the signed part of a log."""
    named = line.get("key") if line["event"] == "started" else None
    if isinstance(named, str) and named != report.key:
        if not re.fullmatch("[0-9a-f]{64}", named):
            report.problems.append(f"line {number} names a key that is none")
            return
        if report.key:
            report.problems.append(f"line {number} names another key than the lines before it")
            return
        report.key = named
        if number > 1:
            report.notes.append(f"lines 1 to {number - 1} are not signed")
        if not can_check():
            report.notes.append("the signatures were not checked, because the package cryptography is not installed")
    if not report.key:
        return
    signature = line.get("signature")
    if not isinstance(signature, str):
        report.problems.append(f"line {number} is not signed")
    elif can_check():
        if is_signed(report.key, signature, raw[: -_HASH_LENGTH - _SIGNATURE_LENGTH + 1] + b"}"):
            report.signed += 1
        else:
            report.problems.append(f"the signature of line {number} is not valid")


def _count(report: AuditReport, line: Mapping[str, Any]) -> None:
    """Whoever checks a log did not write it: what is shown of it must not be able to command a terminal."""
    if line["event"] == "task_boundary":
        report.refusals.update(one_line(str(refusal["site"]), 100) for refusal in line["refusals"])
    if line["event"] != "round":
        return
    report.attempts[line["task"], line["round"]] += 1
    report.outcomes[one_line(line["outcome"], 100)] += 1
    report.updates.update(one_line(str(update["site"]), 100) for update in line["updates"])
    report.refusals.update(one_line(str(refusal["site"]), 100) for refusal in line["refusals"])


def _parse(row: bytes) -> dict[str, Any] | None:
    """A line, or None if it is incomplete or not in the format of this log."""
    try:
        line = json.loads(row if row.endswith(b"\n") else b"")
    except (ValueError, RecursionError):
        return None
    if not _has(line, {"n": int, "previous": str, "event": str, "hash": str}):
        return None
    required = REQUIRED.get(line["event"], {})
    parts = (part for key, kind in required.items() if kind is list for part in _list(line.get(key)))
    return line if _has(line, required) and all(_has(part, {"site": (str, int)}) for part in parts) else None


def _has(content: Any, kinds: Mapping[str, Any]) -> bool:
    return isinstance(content, dict) and all(isinstance(content.get(key), kind) for key, kind in kinds.items())


def _list(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []
