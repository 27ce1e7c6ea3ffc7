"""Models that the promotion gate refused: kept in refused/task-N, until an operator publishes one with a reason.

Publishing by hand writes a signed line "manual_promotion" to the audit log, with the reason. Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

from fedspecial.core.files import write_folder_atomic
from fedspecial.errors import InputError
from fedspecial.flower.governance import promotion
from fedspecial.flower.governance.audit import AuditLog
from fedspecial.flower.governance.promotion import Decision
from fedspecial.flower.governance.signing import open_signer

MANUAL = "manual_promotion"


def keep_refused(run: Path, task: int, model: bytes, card: str, decision: Decision, sha256: str) -> None:
    """Keep the model of a task; that of a repeated attempt at the same task replaces it."""
    folder = run / "refused" / f"task-{task}"
    shutil.rmtree(folder, ignore_errors=True)
    content = json.dumps({**decision.as_json(), "model_sha256": sha256}, indent=2, ensure_ascii=False)
    write_folder_atomic(folder, {"model.safetensors": model, "card.md": card.encode(), "gate.json": content.encode()})


def promoted_by_hand(run: Path, task: int, sha256: str) -> bool:
    """Whether an operator published exactly this model of a task."""
    try:
        found = json.loads((run / "published" / f"task-{task}" / "promotion.json").read_bytes())
    except (OSError, ValueError):
        return False
    return found.get("by_hand") is True and found.get("model_sha256") == sha256


def promote(run: Path, task: int, reason: str) -> Path:
    """Publish a model that the gate refused. The caller holds the lock of the run directory."""
    reason = " ".join(reason.split())
    if not reason:
        raise InputError("--reason: say why the model is published although the gate refused it")
    published, refused = (run / name / f"task-{task}" for name in ("published", "refused"))
    if published.exists():
        raise InputError(f"{run}: the model of task {task} is published already, in {published}")
    try:
        model = (refused / "model.safetensors").read_bytes()
        card, stored = (refused / "card.md").read_text("utf-8"), json.loads((refused / "gate.json").read_bytes())
        gate, sha256 = Decision.of_json(stored), str(stored["model_sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{run}: there is no model of task {task} that the gate refused (no {refused})") from None
    decision = replace(
        gate, publish=True, by_hand=True, reason=f"published by hand: {reason} (the gate: {gate.reason})"
    )
    signer = open_signer(run)
    log = AuditLog(run / "audit.jsonl", signer)
    fields = {"task": task, "publish": True, "reason": reason, "gate": gate.reason, "model": sha256}
    log.append(MANUAL, {**fields, "file_sha256": hashlib.sha256(model).hexdigest()})
    (run / "published").mkdir(exist_ok=True)
    hashes = {"model_sha256": sha256, "audit_head": log.head}
    promotion.publish(published, model, decision=decision, card=card, audit_key=signer.public, **hashes)
    promotion.write_decision(run / "promotion" / f"task-{task}.json", decision, {"task": task, **hashes})
    return published
