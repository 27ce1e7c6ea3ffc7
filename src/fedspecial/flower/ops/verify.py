"""Check a published model against its card, the audit log and, while it is still there, the checkpoint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedspecial.errors import InputError
from fedspecial.flower.governance import audit
from fedspecial.flower.governance.refused import MANUAL

PUBLISHING = ("promotion", MANUAL)


@dataclass
class Verification:
    """checks: what was found to be right · problems: what was not · notes: what could not be checked"""

    checks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def expect(self, condition: bool, right: str, wrong: str) -> None:
        (self.checks if condition else self.problems).append(right if condition else wrong)


def verify_published(folder: Path, log: Path | None = None, key: str | None = None) -> Verification:
    """folder: published/task-N · log: the audit log, that of the run if not given · key: the server's public key"""
    found = Verification()
    try:
        model = (folder / "model.safetensors").read_bytes()
        card = (folder / "README.md").read_text(encoding="utf-8")
        promised: dict[str, Any] = json.loads((folder / "promotion.json").read_bytes())
        model_sha256, file_sha256, head = (str(promised[k]) for k in ("model_sha256", "file_sha256", "audit_head"))
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{folder}: not a published model (model.safetensors, README.md and promotion.json with its hashes)"
        ) from None
    found.expect(
        hashlib.sha256(model).hexdigest() == file_sha256,
        "model.safetensors has the hash in promotion.json",
        "model.safetensors was changed: it does not have the hash in promotion.json",
    )
    for name, value in (("model_sha256", model_sha256), ("file_sha256", file_sha256), ("audit_head", head)):
        found.expect(f"`{value}`" in card, f"the card has the same {name}", f"the card has another {name}")
    log = log or folder.parent.parent / "audit.jsonl"
    _check_log(found, log, head, key or promised.get("audit_key"), file_sha256, model_sha256)
    if key is None:
        found.notes.append("the signing key is the one in promotion.json; give --key to check it, too")
    _check_checkpoint(found, log.parent, model_sha256)
    return found


def _check_log(found: Verification, path: Path, head: str, key: Any, file_sha256: str, model_sha256: str) -> None:
    report = audit.verify(path, head, key if isinstance(key, str) else None)
    found.problems += [f"audit log: {problem}" for problem in report.problems]
    found.notes += [f"audit log: {note}" for note in report.notes]
    if report.intact:
        signed = f", {report.signed} of {report.lines} lines signed" if report.key else ", not signed"
        found.checks.append(f"the audit log is intact and contains the head of the card{signed}")
    lines = [line for line in audit.read_lines(path) if line["event"] in PUBLISHING]
    published = [line for line in lines if line.get("publish") and line.get("file_sha256") == file_sha256]
    found.expect(
        any(line.get("model") == model_sha256 for line in published),
        "the audit log says that this model was published",
        "the audit log does not say that this model was published",
    )
    if any(line["event"] == MANUAL for line in published):
        found.notes.append("it was published by hand, against the gate")


def _check_checkpoint(found: Verification, run: Path, model_sha256: str) -> None:
    """The checkpoint has the newest model only; it is compared where that is the published one."""
    try:
        content = json.loads((run / "checkpoint" / "checkpoint.json").read_bytes())
        blob, layout = str(content["vector"]), str(content["layout"])
        data = (run / "checkpoint" / "blobs" / blob).read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        there = (run / "checkpoint" / "checkpoint.json").exists()
        found.notes.append(
            "the checkpoint is cut off or incomplete; it is not compared"
            if there
            else "there is no checkpoint to compare with"
        )
        return
    from fedspecial.core.messages import raw_bytes, unpack

    if hashlib.sha256(data).hexdigest() != blob:
        found.problems.append("the checkpoint's model was changed (its content no longer has its hash)")
        return
    sha = hashlib.sha256(layout.encode())
    sha.update(raw_bytes(unpack(data)[0]["data"]))
    if sha.hexdigest() == model_sha256:
        found.checks.append("the checkpoint has the same model")
    else:
        found.notes.append("the checkpoint has a later model; it is not compared")
