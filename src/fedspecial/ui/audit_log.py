"""What the federation page shows of an audit log and the files around it, in bounded memory."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedspecial.errors import InputError
from fedspecial.flower.governance import audit
from fedspecial.ui.files import (
    Problem,
    UnreadableFileError,
    count_of,
    number_of,
    open_regular,
    read_json_object,
    text_of,
    whole_of,
)
from fedspecial.ui.tail import TailReader

MAX_SITES = 500
MAX_ROUNDS = 200
MAX_REFUSALS = 100
MAX_DECISIONS = 100
MAX_VERIFIED = 128 << 20
"""A longer log is not verified by the page; `fedspecial flower audit` does it."""
READ_SECONDS = 0.25
VERIFY_SECONDS = 5.0


@dataclass
class Site:
    """What the log says about one site; rounds are counted over the log."""

    name: str
    requested: int = 0
    used: int = 0
    refused: int = 0
    last_used: int | None = None
    missed: int = 0
    """Requests since its last usable reply."""
    last_reason: str = ""
    removed: bool = False

    @property
    def state(self) -> str:
        if self.removed:
            return "left the federation"
        if not self.requested:
            return "not asked yet"
        if not self.missed:
            return "taking part"
        return "refused" if self.last_reason else "no usable reply"


class AuditTrail:
    """The audit log and the promotion decisions of a run directory."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder, self.path = root, folder, folder / "audit.jsonl"
        self._reader = TailReader(root, self.path, self._add_line, self._restart)
        self._verified: dict[str, Any] | None = None
        self._verified_at = float("-inf")
        self._verified_size = -1
        self._restart()

    def _restart(self) -> None:
        self.sites: dict[str, Site] = {}
        self.rounds: deque[dict[str, Any]] = deque(maxlen=MAX_ROUNDS)
        self.refusals: deque[dict[str, Any]] = deque(maxlen=MAX_REFUSALS)
        self.starts: deque[str] = deque(maxlen=50)
        self.num_rounds = self.num_refusals = self.num_unreadable = 0
        self.privacy: dict[str, Any] | None = None

    @property
    def exists(self) -> bool:
        return os.path.lexists(self.path)

    @property
    def share_read(self) -> float:
        return self._reader.share

    def poll(self) -> None:
        self._reader.poll(time.monotonic() + READ_SECONDS)
        self._verify()

    def _add_line(self, raw: bytes) -> None:
        try:
            line = json.loads(raw)
            kind = line["event"]
            if kind == "started":
                self._on_start(line)
            elif kind == "round":
                self._on_round(line)
            elif kind == "task_boundary":
                for refusal in line["refusals"]:
                    self._add_refusal(refusal, line, None)
            elif kind == "privacy":
                self.privacy = _privacy(line)
            elif kind in ("site_added", "site_removed"):
                self._site(line["name"]).removed = kind == "site_removed"
            elif kind == "rollback":
                for change in line.get("undone", []):
                    if change["change"] != "task_added":
                        self._site(change["name"]).removed = change["change"] == "site_added"
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.num_unreadable += 1

    def _on_start(self, line: dict[str, Any]) -> None:
        self.starts.append(text_of(line.get("time")))
        for name in line.get("sites", []):
            self._site(name)

    def _site(self, name: Any) -> Site:
        key = text_of(name)
        if key not in self.sites and len(self.sites) >= MAX_SITES:
            return Site(key)
        return self.sites.setdefault(key, Site(key))

    def _on_round(self, line: dict[str, Any]) -> None:
        task, number = count_of(line["task"]), count_of(line["round"])
        requested, updates, refusals = line["requested"], line["updates"], line["refusals"]
        used = [text_of(update["site"]) for update in updates]
        self.num_rounds += 1
        for name in requested:
            site = self._site(name)
            site.requested += 1
            site.missed += 1
        for name in used:
            site = self._site(name)
            site.used += 1
            site.missed, site.last_used, site.last_reason = 0, self.num_rounds, ""
        for refusal in refusals:
            self._add_refusal(refusal, line, number)
        self.rounds.append(
            {
                "time": text_of(line.get("time")),
                "task": task,
                "round": number,
                "attempt": whole_of(line.get("attempt")),
                "outcome": text_of(line["outcome"]),
                "requested": len(requested),
                "used": len(used),
                "refused": len(refusals),
                "quorum": whole_of(line.get("quorum")),
                "drift": number_of(line.get("drift")),
            }
        )

    def _add_refusal(self, refusal: dict[str, Any], line: dict[str, Any], round_number: int | None) -> None:
        self.num_refusals += 1
        site, reason = self._site(refusal["site"]), text_of(refusal["reason"])
        site.refused += 1
        site.last_reason = reason
        where = {"time": text_of(line.get("time")), "task": whole_of(line.get("task")), "round": round_number}
        self.refusals.append({**where, "site": site.name, "reason": reason})

    def _verify(self) -> None:
        """Check the chain of hashes of the whole log, at most every few seconds while it grows."""
        try:
            size = os.lstat(self.path).st_size
        except OSError:
            return
        if size == self._verified_size or time.monotonic() - self._verified_at < VERIFY_SECONDS:
            return
        self._verified_at, self._verified_size = time.monotonic(), size
        if size > MAX_VERIFIED:
            self._verified = {"state": "not verified", "text": f"it is larger than {MAX_VERIFIED >> 20} MB"}
            return
        try:
            with open_regular(self.root, self.path):
                report = audit.verify(self.path, self._known_head())
        except (UnreadableFileError, InputError, KeyError, TypeError, ValueError, AttributeError) as error:
            self._verified = {"state": "not verified", "text": text_of(str(error)), "problems": [], "notes": []}
            return
        self._verified = {
            "state": "verified" if report.intact else "broken",
            "lines": report.lines,
            "head": report.head,
            "signed": _signatures(report),
            "problems": [text_of(text) for text in report.problems[:20]],
            "notes": [text_of(text) for text in report.notes[:20]],
        }

    def _known_head(self) -> str | None:
        """A head that the log must contain, so that a truncated one is noticed: of the end, or of the checkpoint."""
        for name in ("finished.json", "checkpoint/checkpoint.json"):
            with contextlib.suppress(UnreadableFileError):
                content = read_json_object(self.root, self.folder / name)
                payloads = content.get("payloads")
                head = (payloads if isinstance(payloads, dict) else content).get("audit_head")
                if isinstance(head, str) and head:
                    return head
        return None

    def chain(self) -> dict[str, Any] | None:
        return self._verified

    def site_rows(self) -> list[dict[str, Any]]:
        return [asdict(site) | {"state": site.state} for site in self.sites.values()]

    def decisions(self) -> tuple[list[dict[str, Any]], list[Problem]]:
        """The decisions of the promotion gate, one file per task."""
        found: list[dict[str, Any]] = []
        problems: list[Problem] = []
        try:
            names = sorted(os.listdir(self.folder / "promotion"), key=lambda name: (len(name), name))
        except OSError:
            return found, problems
        for name in names[:MAX_DECISIONS]:
            if not name.endswith(".json"):
                continue
            try:
                content = read_json_object(self.root, self.folder / "promotion" / name)
                found.append(_decision(content))
            except UnreadableFileError as error:
                problems.append(Problem(f"promotion/{name}", str(error)))
            except (KeyError, TypeError, AttributeError):
                problems.append(Problem(f"promotion/{name}", "it is not a decision of the promotion gate"))
        return found, problems


def _privacy(line: dict[str, Any]) -> dict[str, str]:
    """The privacy that is spent, with the names that the page shows."""
    shown = {
        "ε": number_of(line["epsilon"]),
        "ε for an observer who knows who took part": number_of(line["epsilon_known"]),
        "δ": number_of(line["delta"]),
        "noise multiplier": number_of(line["noise_multiplier"]),
        "clip": number_of(line["clip"]),
        "noisy sums": line["releases"],
        "sites per round": f"{text_of(line['sampled'])} of {text_of(line['clients'])}",
        "unit of protection": "a whole site; loss, sample counts and test counts are not covered",
    }
    return {name: text_of(value) for name, value in shown.items()}


def _signatures(report: audit.AuditReport) -> str:
    if not report.key:
        return "not signed"
    return f"{report.signed} of {report.lines} lines signed with the key {text_of(report.key)[:64]}"


def _decision(content: dict[str, Any]) -> dict[str, Any]:
    domains = [
        {
            "domain": text_of(domain["domain"]),
            "status": text_of(domain["status"]),
            "reason": text_of(domain["reason"]),
            "drop": number_of(domain.get("drop")),
        }
        for domain in content["domains"][:60]
    ]
    return {
        "task": whole_of(content.get("task")),
        "publish": content["publish"] is True,
        "reason": text_of(content["reason"]),
        "domains": domains,
    }
