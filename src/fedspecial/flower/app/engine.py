"""The engine of a real federation: the loop of fedspecial, with Flower's Grid between the server and the sites.

Each request is one message to one site. A reply that is late, a duplicate, for another round, too large, of another
shape or not finite is refused, logged and counted. Whether the round can be completed without it is decided by the
quorum. Replies are passed on in the order in which sites were sampled, not in the order of arrival, so that a run can
be repeated bit for bit.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.serverapp import Grid

from fedspecial.core.events import Event
from fedspecial.core.messages import Tensors, Update
from fedspecial.core.refusals import NO_SAMPLES
from fedspecial.core.vector import FlatModel
from fedspecial.data.stream_schedule import STREAM_ROUND
from fedspecial.engine.aggregation.mean import norm
from fedspecial.engine.base import Messages, QueryReply, Reply, problem_with_result
from fedspecial.engine.clients.client import ClientRunner
from fedspecial.engine.clients.payloads import PayloadTracker
from fedspecial.flower.app import wire
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.app.registry import SiteRegistry
from fedspecial.flower.app.requests import NO_REPLY, SiteRequests
from fedspecial.flower.app.site_faults import NOT_TAKING_PART
from fedspecial.flower.app.site_reply import RequestSpec, SiteReply, in_order
from fedspecial.flower.app.site_scores import SiteScores
from fedspecial.flower.governance.promotion import SiteScore
from fedspecial.flower.governance.round_record import RoundCollector, UpdateRecord
from fedspecial.flower.logs import one_line
from fedspecial.methods.base import Query, QueryResult
from fedspecial.objectives.base import Scores

log = logging.getLogger("fedspecial.flower")


@dataclass
class FlowerEngine:
    """
    plan_json:    what the sites receive of the plan
    run:          identifier of the run
    versions, num_requests, kept_versions: of an earlier start of the run, see `SiteRequests`
    collector:    what the audit log will say about the current round
    scores:       domain → site → its main metric, from the last evaluation on complete test sets
    refusals:     site → number of refused replies
    quorum_size:  number of usable replies that the last round needed
    """

    grid: Grid
    plan: FederationPlan
    plan_json: str
    run: str
    runner: ClientRunner
    payloads: PayloadTracker
    versions: dict[int, str] = field(default_factory=dict)
    num_requests: int = 0
    kept_versions: Sequence[dict[int, str]] = ()
    collector: RoundCollector = field(default_factory=RoundCollector)
    scores: dict[str, dict[str, SiteScore]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    quorum_size: int = 1

    def __post_init__(self) -> None:
        self.registry = SiteRegistry(
            *(self.grid, self.plan_json, self.run, self.plan.sites, self.runner.model.layout.frozen),
            registered_only=not self.plan.policy.allow_unregistered,
            absent=self.plan.absent,
        )
        self.requests = SiteRequests(
            *(self.grid, self.plan, self.plan_json, self.run, self.registry, self.payloads, self.refuse),
            *(self.versions, self.num_requests, lambda: self.collector.receipt, self.kept_versions),
        )
        self._without_samples: set[tuple[object, int]] = set()

    # --- the interface of an engine ---------------------------------------------------------------------------

    def train(
        self, task: int, round: int, clients: Sequence[int], messages: Messages, client_lr: float
    ) -> Iterator[Reply]:
        """A site without samples of the task, or that does not allow it, gets one request in it and does not count for
        the quorum."""
        # In a stream with a time of its own, a site may get samples within a task, so it is asked again every round.
        when = (task, messages(clients[0]).numbers.get(STREAM_ROUND)) if clients else (task, None)
        able = [client for client in clients if (when, client) not in self._without_samples]
        self.collector.begin_round([self.plan.sites[client] for client in able])
        known = [SiteReply(client, NO_SAMPLES) for client in clients if client not in able]
        spec = RequestSpec(wire.TRAIN, client_lr=client_lr)
        for reply in in_order(clients, known, self.requests.with_retries(spec, able, messages)):
            if reply.problem == NO_SAMPLES or reply.problem in NOT_TAKING_PART:
                self._without_samples.add((when, reply.client))
            yield self.to_reply(reply, messages(reply.client).vectors)
        able = [client for client in clients if (when, client) not in self._without_samples]
        self.quorum_size = self.plan.policy.quorum_size(len(able))

    def query(self, query: Query) -> Iterator[QueryReply]:
        absent = self.plan.absent
        clients = [c for c in (self._present if query.clients is None else query.clients) if c not in absent]
        spec = RequestSpec(wire.QUERY, query=query.name)
        for reply in in_order(clients, self.requests.with_retries(spec, clients, query.message)):
            result, problem = None, reply.problem
            if problem is None and reply.header is not None:
                result = QueryResult(reply.uploads, reply.header.numbers)
                if found := problem_with_result(result, reply.client, query):
                    problem = one_line(found)
                    self.refuse(reply.client, problem, False)
            yield QueryReply(reply.client, None if problem else result, problem, reply.bytes_up, reply.bytes_down)

    def evaluate(
        self,
        messages: Messages,
        tasks: Sequence[int],
        *,
        cap: int | None = None,
        masked: bool = False,
        complete: bool = False,
    ) -> list[Scores | None]:
        """Accuracy over all test samples of all sites; other metrics are the mean of the sites' own, weighted by their
        test samples, because predictions stay at the sites. None for a domain that no site can test."""
        share = self.plan.policy.max_site_share
        found: dict[int, SiteScores] = {task: SiteScores(self.runner.objective, share) for task in tasks}
        clients = self._present
        spec = RequestSpec(wire.EVALUATE, tasks=tuple(tasks), cap=cap, masked=masked, complete=complete)
        for reply in in_order(clients, self.requests.with_retries(spec, clients, messages)):
            if reply.problem is not None or reply.header is None:
                continue
            for task in tasks:
                problem = found[task].add(self.plan.sites[reply.client], reply.header, task)
                if reason := reply.header.untested.get(str(task)):
                    problem = f"task {task} is not tested: {reason}"
                if problem:
                    self.refuse(reply.client, problem, False)
        for task, scores in found.items():
            for site in scores.capped_sites():
                log.warning(
                    "site %s: its test samples of task %d count as %g %% (max_site_share)", site, task, 100 * share
                )
        if cap is None and not masked:
            self.scores = {self.runner.federation.domain(task).name: s.by_site for task, s in found.items()}
        return [scores.together() for scores in found.values()]

    def set_model(self, model: FlatModel) -> None:
        self.runner.set_model(model)

    @property
    def workers(self) -> int:
        return len(self._present)

    @property
    def _present(self) -> Sequence[int]:
        return self.runner.federation.present

    def events(self) -> list[Event]:
        return []

    def close(self) -> None:
        """Sites and their processes are not started by this engine."""

    def checkpoint_state(self) -> tuple[dict[int, str], dict[str, Any]]:
        """The client states themselves are stored by the sites."""
        plan = self.plan
        members = {"sites": len(plan.sites), "tasks": len(plan.tasks), "removed": len(plan.removed)}
        about = {"audit_head": self.collector.audit_head, "members": members}
        return {}, {**self.requests.checkpoint_state(), **about}

    def to_reply(self, reply: SiteReply, sent: Tensors) -> Reply:
        costs = (reply.bytes_up, reply.bytes_down, reply.bytes_once)
        if reply.problem is not None or reply.header is None:
            return Reply(reply.client, None, reply.problem or NO_REPLY, *costs)
        header, site = reply.header, self.plan.sites[reply.client]
        update = Update(
            reply.client, reply.deltas, header.steps, header.samples, header.loss, header.numbers, reply.uploads
        )
        size = norm(next(iter(reply.deltas.values())))
        self.collector.add_update(site, UpdateRecord.of(site, reply.bytes_up, reply.vectors, size))
        return Reply(reply.client, update, None, *costs, sent, header.memory, header.paper_memory)

    def is_without_samples(self, task: int, client: int) -> bool:
        return (task, client) in self._without_samples

    def note_without_samples(self, task: int, client: int) -> None:
        """The site gets no further requests in this task."""
        self._without_samples.add((task, client))

    def refuse(self, client: int, reason: str, in_round: bool) -> None:
        """Log and count a refused reply; `in_round`: also name it in the audit log's line of the round."""
        site, reason = self.plan.sites[client], one_line(reason)
        self.refusals[site] += 1
        if in_round:
            self.collector.add_refusal(site, reason)
        log.warning("site %s: %s", site, reason)
