"""Asynchronous mode on Flower: sites are at work, and the server takes their updates as they arrive.

Messages are pushed and pulled one by one. A slow site holds nobody up and contributes with its staleness. A site whose
reply is refused, that was restarted, or that does not reply within `reply_seconds` frees its place, and takes part
again after the next server step.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedspecial.core.clock_events import Loss, ServerStep, UpdateLost, UpdateOrigin
from fedspecial.core.refusals import NO_SAMPLES
from fedspecial.engine.base import Engine, Reply
from fedspecial.engine.checkpoint import Checkpointer
from fedspecial.engine.clock import TimedRound
from fedspecial.engine.in_flight import Assignment, Finished
from fedspecial.errors import InputError
from fedspecial.flower.app import wire
from fedspecial.flower.app.engine import FlowerEngine
from fedspecial.flower.app.site_faults import NOT_TAKING_PART
from fedspecial.flower.app.site_reply import RequestSpec, SiteReply

_POLL_SECONDS = 0.2


@dataclass
class FlowerWork:
    """Which sites are at work; implements `WorkInFlight`. After a restart of the server, all sites are asked again."""

    flower: FlowerEngine
    answered: int = 0
    buffer: list[Assignment] = field(default_factory=list)
    _task: int = 0
    _failures: int = 0
    _at_work: dict[int, Assignment] = field(default_factory=dict)
    _replies: dict[int, SiteReply] = field(default_factory=dict)

    @property
    def at_work(self) -> Collection[int]:
        return self._at_work.keys()

    def available(self, task: int, version: int, client: int) -> bool:
        return client in self.flower.registry.nodes and not self.flower.is_without_samples(task, client)

    def start(self, task: int, assignments: Sequence[Assignment]) -> None:
        self._task = task
        for assignment in assignments:
            self._ask(assignment)

    def _ask(self, assignment: Assignment) -> None:
        spec = RequestSpec(wire.TRAIN, client_lr=assignment.client_lr)
        self.flower.requests.post(spec, assignment.client, assignment.message)
        self._at_work[assignment.client] = assignment

    def wait(self) -> list[Finished]:
        if not self._at_work:
            return self._wait_for_sites()
        while True:
            found = [*self._arrived(), *self._lost()]
            if found:
                self._check_progress(found)
                return sorted(found, key=lambda finished: finished.assignment.client)
            self.flower.requests.refresh()
            time.sleep(_POLL_SECONDS)

    def _check_progress(self, found: Sequence[Finished]) -> None:
        """Stop if no site can do what it is asked for, as a synchronous federation does without a quorum."""
        self._failures = 0 if any(f.loss is None for f in found) else self._failures + len(found)
        sites, retries = len(self.flower.runner.federation.present), self.flower.plan.policy.retries
        if self._failures > sites * (1 + retries):
            raise InputError(f"retries={retries}: no usable update in the last {self._failures} requests to sites")

    def _wait_for_sites(self) -> list[Finished]:
        """Nobody can be asked: wait until a site connects that has samples of the task."""
        seconds, present = self.flower.plan.policy.wait_seconds, self.flower.runner.federation.present
        sites = [client for client in present if not self.flower.is_without_samples(self._task, client)]
        if not sites:
            raise InputError(f"task {self._task}: no site has samples of it or allows it")
        if not self.flower.registry.wait(sites, 1, seconds).keys() & set(sites):
            raise InputError(f"wait_seconds={seconds:g}: no site with samples of task {self._task} is connected")
        return []

    def _arrived(self) -> Iterator[Finished]:
        for reply in self.flower.requests.arrived():
            assignment = self._at_work.pop(reply.client, None)
            if assignment is None:
                continue
            if reply.missing_payloads:
                self.flower.payloads.forget(reply.client)
                self._ask(assignment)
            elif reply.problem is not None:
                if reply.problem == NO_SAMPLES or reply.problem in NOT_TAKING_PART:
                    self.flower.note_without_samples(assignment.message.task, reply.client)
                self.flower.refuse(reply.client, reply.problem, True)
                yield Finished(assignment, "refused")
            else:
                self._replies[reply.client] = reply
                yield Finished(assignment)

    def _lost(self) -> Iterator[Finished]:
        reasons: dict[int, Loss] = {client: reason for client, reason in self.flower.requests.given_up(self._at_work)}
        for client, reason in reasons.items():
            yield Finished(self._at_work.pop(client), reason)

    def replies(self, engine: Engine, task: int, assignments: Sequence[Assignment]) -> Iterator[Reply]:
        self.flower.collector.begin_round([self.flower.plan.sites[work.client] for work in assignments])
        for work in assignments:
            yield self.flower.to_reply(self._replies.pop(work.client), work.message.vectors)

    def step_event(self, task: int, version: int, updates: list[UpdateOrigin]) -> ServerStep:
        return ServerStep(task, version, None, None, None, len(self._at_work), updates)

    def lost_event(self, task: int, version: int, assignment: Assignment, reason: Loss) -> UpdateLost:
        return UpdateLost(task, version, assignment.client, assignment.version, reason)

    def end_task(self) -> list[Assignment]:
        """The questions of the old task are withdrawn: their answers are not waited for any more."""
        rest = sorted([*self.buffer, *self._at_work.values()], key=lambda assignment: assignment.client)
        self.flower.requests.withdraw(self._at_work)
        self.buffer, self.answered = [], 0
        self._at_work.clear()
        self._replies.clear()
        return rest

    def time_round(self, task: int, round: int, asked: Sequence[int]) -> TimedRound:
        raise NotImplementedError("an asynchronous federation has no rounds")

    def to_json(self, checkpointer: Checkpointer) -> dict[str, Any]:
        return {"answered": self.answered}
