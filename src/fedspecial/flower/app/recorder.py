"""Listens to the events of a run and writes the audit log, the promotion decisions and the published models."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch

from fedspecial.core.events import CertificateIssued, Event, RoundFinished, TaskBoundary, TaskFinished, UpdateRefused
from fedspecial.core.files import write_atomic
from fedspecial.engine.loop import Run
from fedspecial.errors import InputError
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.governance import audit, promotion
from fedspecial.flower.governance.audit import AuditLog
from fedspecial.flower.governance.promotion import Count, Scores
from fedspecial.flower.governance.round_record import RoundCollector, RoundOutcome, RoundRecord

if TYPE_CHECKING:
    from fedspecial.flower.app.engine import FlowerEngine

log = logging.getLogger("fedspecial.flower")


class Recorder:
    """Writes audit.jsonl, promotion/ and published/ in the run directory, and stops the run if a quorum is missing."""

    engine: FlowerEngine

    def __init__(self, folder: Path, plan: FederationPlan) -> None:
        self.folder, self.plan = folder, plan
        self.audit_log = AuditLog(folder / "audit.jsonl")
        self.collector = RoundCollector(audit_head=self.audit_log.head)
        self._run: Run | None = None
        self._model_before = ""

    def attach(self, run: Run) -> None:
        """Record the start (or restart) of the run whose events `listen` will receive."""
        self._run = run
        self._model_before = self._model_sha256()
        position = {"task": run.position.task, "round": run.position.round, "model": self._model_before}
        self._append("started", {"format": audit.FORMAT, **position, "sites": list(self.plan.sites)})

    def listen(self, event: Event) -> None:
        if isinstance(event, UpdateRefused):
            self._on_refusal(event)
        elif isinstance(event, TaskBoundary):
            self._on_task_boundary(event)
        elif isinstance(event, RoundFinished):
            self._on_round(event)
        elif isinstance(event, CertificateIssued):
            self._append("certificate", {"task": event.task, **event.summary})
        elif isinstance(event, TaskFinished):
            self._on_task_finished(event)

    def _append(self, event: str, fields: dict[str, Any]) -> None:
        self.collector.audit_head = self.audit_log.append(event, fields)

    def _on_refusal(self, event: UpdateRefused) -> None:
        """In a round, the engine has already collected what it refused itself; between tasks it has not."""
        site = self.plan.sites[event.client]
        if event.round is None:
            self.collector.add_refusal(site, event.reason)
        else:
            self.collector.withdraw_update(site, event.reason)

    def _on_task_boundary(self, event: TaskBoundary) -> None:
        """Refusals between tasks belong to no round and get a line of their own."""
        if refusals := self.collector.take_refusals():
            fields = {"task": event.task, "hook": event.hook, "refusals": [asdict(refusal) for refusal in refusals]}
            self._append("task_boundary", fields)

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
        )
        self.collector.audit_head, self._model_before = self.audit_log.append_round(record), model
        replies = f"{event.num_accepted} of {len(record.requested)} replies usable"
        if stop:
            reasons = "; ".join(map(str, record.refusals))
            raise InputError(
                f"quorum={self.plan.policy.quorum:g}: no quorum in task {event.task} round {event.round + 1} "
                f"({replies}); the run stops and can be started again ({reasons})"
            )
        skipped = "; no quorum, so the model is unchanged" if event.held else ""
        log.info("task %d round %d: %s%s", event.task, event.round + 1, replies, skipped)

    def _on_task_finished(self, event: TaskFinished) -> None:
        """Decide whether the model at the end of a task is published, and publish it."""
        history = self._add_to_history(event.name)
        candidate = {domain: dict(sites) for domain, sites in self.engine.scores.items()}
        earlier = [name for name in history if name != event.name]
        reference = promotion.reference_at_own_task(history)
        decision = promotion.decide(earlier, candidate, reference, self.plan.policy.limits)
        model = self._model_sha256()
        extra = {"task": event.task, "model_sha256": model, "audit_head": self.audit_log.head}
        (self.folder / "promotion").mkdir(exist_ok=True)
        name = f"task-{event.task}"
        promotion.write_decision(self.folder / "promotion" / f"{name}.json", decision, extra)
        fields = {"task": event.task, "publish": decision.publish, "reason": decision.reason, "model": model}
        self._append("promotion", fields)
        log.info("task %d: %s", event.task, decision.reason)
        if decision.publish and not (self.folder / "published" / name).exists():
            (self.folder / "published").mkdir(exist_ok=True)
            promotion.publish(
                self.folder / "published" / name,
                self._model_file(),
                decision=decision,
                card=self._card(event),
                model_sha256=model,
                audit_head=self.audit_log.head,
            )

    def _add_to_history(self, name: str) -> dict[str, Scores]:
        """The scores at the end of every task including this one; in a file, since the server may be restarted."""
        path = self.folder / "promotion-history.json"
        stored: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
        counts = {d: {s: [c.correct, c.total] for s, c in sites.items()} for d, sites in self.engine.scores.items()}
        stored[name] = counts
        write_atomic(path, json.dumps(stored).encode())
        return {
            task: {d: {s: Count(*pair) for s, pair in sites.items()} for d, sites in scores.items()}
            for task, scores in stored.items()
        }

    def _card(self, event: TaskFinished) -> str:
        assert self._run is not None
        tasks = self._run.federation.benchmark.task_names
        accuracies = [
            f"- {name}: {'unknown' if value is None else f'{100 * value:.2f} %'}"
            for name, value in zip(tasks, event.accuracy, strict=True)
        ]
        return "\n".join(
            [
                f"# {self._run.config.model} after task {event.task}, {event.name}",
                "",
                f"Trained with {self._run.method.name} on {len(self.plan.sites)} sites: {', '.join(self.plan.sites)}.",
                "Accuracy over all test samples of all sites:",
                "",
                *accuracies,
            ]
        )

    def _model_file(self) -> bytes:
        assert self._run is not None
        named = {name: tensor.clone() for name, tensor in self._run.model.layout.named(self._run.vector.cpu())}
        return safetensors.torch.save(named)

    def _model_sha256(self) -> str:
        assert self._run is not None
        return self._run.model.layout.digest(self._run.vector)
