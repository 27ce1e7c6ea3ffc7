"""The server's books, kept by listening to the run: the audit log, the promotion gate, the quorum's last word."""

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
from fedspecial.flower.app.evidence import Evidence
from fedspecial.flower.app.plan import Plan
from fedspecial.flower.governance import promotion
from fedspecial.flower.governance.audit import AuditLog
from fedspecial.flower.governance.promotion import Count, Scores
from fedspecial.flower.governance.round_record import RoundRecord

if TYPE_CHECKING:
    from fedspecial.flower.app.engine import FlowerEngine

log = logging.getLogger("fedspecial.flower")


class Recorder:
    """audit.jsonl, promotion/, published/ in the run's folder."""

    engine: FlowerEngine

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.log = AuditLog(folder / "audit.jsonl")
        self.evidence = Evidence(head=self.log.head)
        self._run: Run | None = None
        self._before = ""

    def follow(self, run: Run) -> None:
        """The run whose events come in; the log says where it begins or goes on."""
        self._run = run
        self._before = self._digest()
        place = {"task": run.position.task, "round": run.position.round, "model": self._before}
        self.evidence.head = self.log.append("started", {**place, "sites": list(self.plan.sites)})

    def listen(self, event: Event) -> None:
        if isinstance(event, UpdateRefused):
            self._refused(event)
        elif isinstance(event, TaskBoundary):
            self._border(event)
        elif isinstance(event, RoundFinished):
            self._round(event)
        elif isinstance(event, CertificateIssued):
            self.evidence.head = self.log.append("certificate", {"task": event.task, **event.summary})
        elif isinstance(event, TaskFinished):
            self._task(event)

    def _refused(self, event: UpdateRefused) -> None:
        """In a round the engine has written down what it refused itself; at a border nobody has yet."""
        site = self.plan.sites[event.client]
        if event.round is None:
            self.evidence.refuse(site, event.reason)
        else:
            self.evidence.withdraw(site, event.reason)

    def _border(self, event: TaskBoundary) -> None:
        """A line of its own for what was refused between tasks."""
        if self.evidence.refusals:
            refused = [asdict(refusal) for refusal in self.evidence.refusals]
            fields = {"task": event.task, "border": event.hook, "refusals": refused}
            self.evidence.head = self.log.append("border", fields)
            self.evidence.refusals = []

    def _round(self, event: RoundFinished) -> None:
        """One line in the log, whatever became of the round; without a quorum the policy may end the run here."""
        after = self._digest()
        stop = event.held and bool(self.evidence.asked) and self.plan.policy.on_missing != "hold"
        record = RoundRecord(
            event.task,
            event.round,
            list(self.evidence.asked),
            "failed" if stop else "held" if event.held else "completed",
            self._before,
            after,
            list(self.evidence.answers.values()),
            list(self.evidence.refusals),
            event.drift,
        )
        self.evidence.head, self._before = self.log.append_round(record), after
        self.evidence.refusals = []
        got = f"{event.num_accepted} of {len(record.asked)} answers"
        if stop:
            why = "; ".join(map(str, record.refusals))
            raise InputError(
                f"quorum={self.plan.policy.quorum:g}: task {event.task} round {event.round + 1} got {got}; the run "
                f"stops and can be started again ({why})"
            )
        log.info("task %d round %d: %s%s", event.task, event.round + 1, got, ", model held" if event.held else "")

    def _task(self, event: TaskFinished) -> None:
        """Judge the model that ends a task, and publish it or say why not."""
        history = self._remember(event.name)
        candidate = {domain: dict(sites) for domain, sites in self.engine.scores.items()}
        earlier = [name for name in history if name != event.name]
        reference = promotion.reference_at_own_task(history)
        decision = promotion.decide(earlier, candidate, reference, self.plan.policy.limits)
        about = {"task": event.task, "model_sha256": self._digest(), "audit_head": self.log.head}
        (self.folder / "promotion").mkdir(exist_ok=True)
        name = f"task-{event.task}"
        promotion.write_decision(self.folder / "promotion" / f"{name}.json", decision, about)
        fields = {"task": event.task, "publish": decision.publish, "reason": decision.reason, "model": self._digest()}
        self.evidence.head = self.log.append("promotion", fields)
        log.info("task %d: %s", event.task, decision.reason)
        if decision.publish and not (self.folder / "published" / name).exists():
            (self.folder / "published").mkdir(exist_ok=True)
            promotion.publish(
                self.folder / "published" / name,
                self._model(),
                decision=decision,
                card=self._card(event),
                model_sha256=self._digest(),
                audit_head=self.log.head,
            )

    def _remember(self, name: str) -> dict[str, Scores]:
        """What was measured at every task's end, this one included; in a file, since a server may be restarted."""
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
        tested = [
            f"- {name}: {'unknown' if value is None else f'{100 * value:.2f} %'}"
            for name, value in zip(tasks, event.accuracy, strict=True)
        ]
        return "\n".join(
            [
                f"# {self._run.config.model} after task {event.task}, {event.name}",
                "",
                f"Learned with {self._run.method.name} by {len(self.plan.sites)} sites: {', '.join(self.plan.sites)}.",
                "Accuracy over the sites' own test samples, counted together:",
                "",
                *tested,
            ]
        )

    def _model(self) -> bytes:
        assert self._run is not None
        named = {name: tensor.clone() for name, tensor in self._run.model.layout.named(self._run.vector.cpu())}
        return safetensors.torch.save(named)

    def _digest(self) -> str:
        assert self._run is not None
        return self._run.model.layout.digest(self._run.vector)
