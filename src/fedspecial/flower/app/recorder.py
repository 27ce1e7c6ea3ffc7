"""Listens to the events of a run and writes the audit log, the promotion decisions and the published models."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch

from fedspecial.core.clock_events import ServerStep, UpdateLost
from fedspecial.core.events import (
    CertificateIssued,
    Event,
    RoundFinished,
    TaskBoundary,
    TaskFinished,
    UpdateRefused,
)
from fedspecial.core.files import write_atomic
from fedspecial.core.privacy import PrivacyCharged
from fedspecial.core.refusals import NO_SAMPLES
from fedspecial.engine.run import Run
from fedspecial.errors import InputError
from fedspecial.flower.app.cards import published_card
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.governance import audit, promotion
from fedspecial.flower.governance.audit import AuditLog
from fedspecial.flower.governance.promotion import Count, Measured, Scores, SiteScore
from fedspecial.flower.governance.refused import keep_refused, promoted_by_hand
from fedspecial.flower.governance.round_record import RoundCollector, RoundOutcome, RoundRecord
from fedspecial.flower.governance.signing import open_signer

if TYPE_CHECKING:
    from fedspecial.flower.app.engine import FlowerEngine

log = logging.getLogger("fedspecial.flower")


class Recorder:
    """Writes audit.jsonl, promotion/ and published/ in the run directory, and stops the run if a quorum is missing."""

    engine: FlowerEngine

    def __init__(self, folder: Path, plan: FederationPlan, run_id: str, saved_head: str = "") -> None:
        """saved_head: the head of the audit log in the checkpoint from which the run continues"""
        self.folder, self.plan, self._run_id = folder, plan, run_id
        self._signer = open_signer(folder)
        self.audit_log = AuditLog(folder / "audit.jsonl", self._signer)
        if saved_head and (problems := audit.verify(self.audit_log.path, saved_head).problems):
            raise InputError(f"{self.audit_log.path}: {problems[0]}; the run does not continue without its log")
        self.collector = RoundCollector(audit_head=self.audit_log.head)
        self._run: Run | None = None
        self._model_before = ""
        self._charged: PrivacyCharged | None = None

    def attach(self, run: Run) -> None:
        """Record the start (or restart) of the run whose events `listen` will receive."""
        self._run = run
        self._model_before = self._model_sha256()
        position = {"task": run.position.task, "round": run.position.round, "model": self._model_before}
        about = {"format": audit.FORMAT, "key": self._signer.public, "sites": list(self.plan.sites)}
        self.append("started", {**about, **position})
        last = run.position.task - 1
        if run.position.round == 0 and last and self._was_refused(last):  # a task was added to a finished federation
            self._stop_after_refusal(last)

    def _was_refused(self, task: int) -> bool:
        """Whether the gate refused the model of a task, and no operator published it."""
        path = self.folder / "promotion" / f"task-{task}.json"
        refused = path.exists() and not json.loads(path.read_bytes())["publish"]
        return refused and not promoted_by_hand(self.folder, task, self._model_sha256())

    def listen(self, event: Event) -> None:
        if isinstance(event, UpdateRefused):
            self._on_refusal(event)
        elif isinstance(event, TaskBoundary):
            self._on_task_boundary(event)
        elif isinstance(event, RoundFinished):
            self._on_round(event)
        elif isinstance(event, CertificateIssued):
            self.append("certificate", {"task": event.task, **event.summary})
        elif isinstance(event, ServerStep):
            updates = [{**asdict(update), "site": self.plan.sites[update.client]} for update in event.updates]
            self.append(event.event, {"task": event.task, "round": event.round, "updates": updates})
        elif isinstance(event, UpdateLost):
            site = self.plan.sites[event.client]
            fields = {"task": event.task, "round": event.round, "site": site, "version": event.version}
            self.append(event.event, {**fields, "reason": event.reason})
        elif isinstance(event, PrivacyCharged):
            self._charged = event
            self.append(event.event, vars(event))
        elif isinstance(event, TaskFinished):
            self._on_task_finished(event)

    def append(self, event: str, fields: dict[str, Any]) -> None:
        self.audit_log.append(event, fields)
        self._note_head()

    def _note_head(self) -> None:
        """For the next checkpoint, and for the sites, which store it with the next request."""
        receipt = self.audit_log.receipt(self._run_id)
        self.collector.audit_head = self.audit_log.head
        self.collector.receipt = asdict(receipt) if receipt else {}

    def _on_refusal(self, event: UpdateRefused) -> None:
        """In a round, the engine has already collected what it refused itself; between tasks it has not."""
        site = self.plan.sites[event.client]
        if event.round is None:
            self.collector.add_refusal(site, event.reason)
        elif self.collector.withdraw_update(site):
            self.engine.refuse(event.client, event.reason, True)

    def _on_task_boundary(self, event: TaskBoundary) -> None:
        """Refusals between tasks belong to no round and get a line of their own."""
        if refusals := self.collector.take_refusals():
            fields = {"task": event.task, "hook": event.hook, "refusals": [asdict(refusal) for refusal in refusals]}
            self.append("task_boundary", fields)

    def _on_round(self, event: RoundFinished) -> None:
        """Write the round's line; without a quorum, stop the run here if the policy says so."""
        model = self._model_sha256()
        # If no site has samples of the task, there was no request, and stopping would not help.
        stop = event.held and bool(self.collector.requested) and self.plan.policy.on_no_quorum != "skip"
        outcome: RoundOutcome = "failed" if stop else "skipped" if event.held else "completed"
        record = RoundRecord(
            event.task,
            event.round,
            list(self.collector.requested),
            outcome,
            self._model_before,
            model,
            list(self.collector.updates.values()),
            self.collector.take_refusals(),
            event.drift,
            self.engine.quorum_size,
        )
        self.audit_log.append_round(record)
        self._note_head()
        self._model_before = model
        replies = f"{event.num_accepted} of {len(record.requested)} replies usable"
        if stop:
            reasons = "; ".join(map(str, record.refusals))
            if self.plan.tasks and not record.updates and NO_SAMPLES in {r.reason for r in record.refusals}:
                raise InputError(self._nobody_has(event.task, reasons))
            raise InputError(
                f"quorum={self.plan.policy.quorum:g}: no quorum in task {event.task} round {event.round + 1} "
                f"({replies}); the run stops and can be started again ({reasons})"
            )
        skipped = "; no quorum, so the model is unchanged" if event.held else ""
        log.info("task %d round %d: %s%s", event.task, event.round + 1, replies, skipped)

    def _nobody_has(self, task: int, reasons: str) -> str:
        """Starting the run again, as after another round without a quorum, would not help."""
        return (
            f"task {task}: no site has samples of '{self.plan.tasks[task - 1]}' ({reasons}); either the sites' folders "
            "have another name, which their node configs give (tasks), or the task was added by mistake: "
            f"`fedspecial flower rollback {self.folder} --to {task}/0 --members --reason …` undoes that; then start "
            "the run again"
        )

    def _on_task_finished(self, event: TaskFinished) -> None:
        """Decide whether the model at the end of a task is published, and publish it."""
        history = self._add_to_history(event.name)
        candidate = {domain: dict(sites) for domain, sites in self.engine.scores.items()}
        earlier = [name for name in history if name != event.name]
        reference = promotion.reference_at_own_task(history)
        assert self._run is not None
        objective = self._run.objective
        decision = promotion.decide(
            *(earlier, candidate, reference, self.plan.policy.limits, objective.main.name),
            current=event.name,
            classes=self._run.federation.num_classes(event.task) if objective.counts_correct else 0,
        )
        model, file = self._model_sha256(), self._model_file()
        card = published_card(self.plan, self._run, self.audit_log.path, event, self._charged)
        (self.folder / "promotion").mkdir(exist_ok=True)
        by_hand = promoted_by_hand(self.folder, event.task, model)
        if not by_hand:
            extra = {"task": event.task, "model_sha256": model, "audit_head": self.audit_log.head}
            promotion.write_decision(self.folder / "promotion" / f"task-{event.task}.json", decision, extra)
        fields = {"task": event.task, "publish": decision.publish, "reason": decision.reason, "model": model}
        self.append("promotion", {**fields, "file_sha256": hashlib.sha256(file).hexdigest()})
        log.info("task %d: %s", event.task, decision.reason)
        published = self.folder / "published" / f"task-{event.task}"
        if decision.publish and not published.exists():
            published.parent.mkdir(exist_ok=True)
            promotion.publish(
                published,
                file,
                decision=decision,
                card=card,
                model_sha256=model,
                audit_head=self.audit_log.head,
                audit_key=self._signer.public,
            )
        elif by_hand:
            log.info("task %d: published by hand; the run continues from this model", event.task)
        elif not decision.publish:
            keep_refused(self.folder, event.task, file, card, decision, model)
            self._stop_after_refusal(event.task)

    def _stop_after_refusal(self, task: int) -> None:
        """A refused model does not become the base of the next task unless the policy or an operator says so."""
        assert self._run is not None
        if task < self._run.federation.num_tasks and self.plan.policy.on_refused_model == "stop":
            raise InputError(
                f"on_refused_model=stop: the gate refused the model of task {task}, so the run stops before the next "
                f"task; `fedspecial flower promote {self.folder} {task} --reason …` publishes it, and on_refused_model="
                "continue goes on from it unpublished; then start the run again"
            )

    def _add_to_history(self, name: str) -> dict[str, Scores]:
        """The scores at the end of every task including this one; in a file, since the server may be restarted."""
        path = self.folder / "promotion-history.json"
        stored: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
        counts = {d: {s: _stored(score) for s, score in sites.items()} for d, sites in self.engine.scores.items()}
        stored[name] = counts
        write_atomic(path, json.dumps(stored).encode())
        return {
            task: {d: {s: _restored(pair) for s, pair in sites.items()} for d, sites in scores.items()}
            for task, scores in stored.items()
        }

    def _model_file(self) -> bytes:
        assert self._run is not None
        return safetensors.torch.save({**self._run.model_state(), **self._run.model.frozen_state()})

    def _model_sha256(self) -> str:
        assert self._run is not None
        return self._run.model_sha256()


def _stored(score: SiteScore) -> list[int] | dict[str, Any]:
    return [score.correct, score.total] if isinstance(score, Count) else asdict(score)


def _restored(stored: list[int] | dict[str, Any]) -> SiteScore:
    return Count(*stored) if isinstance(stored, list) else Measured(**stored)
