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
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedspecial.core.events import Event
from fedspecial.core.messages import Broadcast, Tensors, Update
from fedspecial.core.vector import FlatModel
from fedspecial.engine.aggregate import norm
from fedspecial.engine.base import Messages, QueryReply, Reply, problem_with_result
from fedspecial.engine.client import NO_SAMPLES, ClientRunner
from fedspecial.engine.payloads import PayloadTracker
from fedspecial.flower.app import wire
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.app.registry import SiteRegistry
from fedspecial.flower.app.site_reply import RequestSpec, SentRequest, SiteReply, in_order, read_reply
from fedspecial.flower.app.transport import Transport
from fedspecial.flower.app.wire import SiteRequest
from fedspecial.flower.governance.promotion import Count
from fedspecial.flower.governance.round_record import RoundCollector, UpdateRecord
from fedspecial.methods.base import Query, QueryResult

log = logging.getLogger("fedspecial.flower")
NOT_CONNECTED = "the site is not connected"
NO_REPLY = "no reply before the deadline"


@dataclass
class FlowerEngine:
    """
    run:          identifier of the run
    versions:     client → version of its client state at the site
    num_requests: number of request batches so far; it makes versions unique
    collector:    what the audit log will say about the current round
    scores:       domain → site → correct predictions, from the last evaluation on complete test sets
    refusals:     site → number of refused replies
    quorum_size:  number of usable replies that the last round needed
    """

    grid: Grid
    plan: FederationPlan
    run: str
    runner: ClientRunner
    payloads: PayloadTracker
    versions: dict[int, str] = field(default_factory=dict)
    num_requests: int = 0
    collector: RoundCollector = field(default_factory=RoundCollector)
    scores: dict[str, dict[str, Count]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    quorum_size: int = 1

    def __post_init__(self) -> None:
        self._plan_json = self.plan.to_json()
        self.registry = SiteRegistry(self.grid, self._plan_json, self.run, self.plan.sites)
        self._transport = Transport(self.grid, self._refuse)
        self._checkpointed = (dict(self.versions), dict(self.versions))  # versions in the last two checkpoints
        self._without_samples: set[tuple[int, int]] = set()

    # --- the interface of an engine ---------------------------------------------------------------------------

    def train(
        self, task: int, round: int, clients: Sequence[int], messages: Messages, client_lr: float
    ) -> Iterator[Reply]:
        """A site without samples of the task gets one request in it and does not count for the quorum."""
        able = [client for client in clients if (task, client) not in self._without_samples]
        self.collector.begin_round([self.plan.sites[client] for client in able])
        known = [SiteReply(client, NO_SAMPLES) for client in clients if client not in able]
        spec = RequestSpec(wire.TRAIN, client_lr=client_lr)
        for reply in in_order(clients, known, self._request_with_retries(spec, able, messages)):
            if reply.problem == NO_SAMPLES:
                self._without_samples.add((task, reply.client))
            yield self._to_reply(reply, messages(reply.client).vectors)
        able = [client for client in clients if (task, client) not in self._without_samples]
        self.quorum_size = self.plan.policy.quorum_size(len(able))

    def query(self, query: Query) -> Iterator[QueryReply]:
        clients = list(range(len(self.plan.sites)) if query.clients is None else query.clients)
        spec = RequestSpec(wire.QUERY, query=query.name)
        for reply in in_order(clients, self._request_with_retries(spec, clients, query.message)):
            result, problem = None, reply.problem
            if problem is None and reply.header is not None:
                result = QueryResult(reply.uploads, reply.header.numbers)
                if problem := problem_with_result(result, reply.client, query):
                    self._refuse(reply.client, problem, in_round=False)
            yield QueryReply(reply.client, None if problem else result, problem, reply.bytes_up, reply.bytes_down)

    def accuracies(
        self, messages: Messages, tasks: Sequence[int], *, cap: int | None = None, masked: bool = False
    ) -> list[float | None]:
        """Accuracy over all test samples of all sites; None for a domain that no site can test."""
        counts: dict[int, dict[str, Count]] = {task: {} for task in tasks}
        clients = list(range(len(self.plan.sites)))
        spec = RequestSpec(wire.EVALUATE, tasks=tuple(tasks), cap=cap, masked=masked)
        for reply in in_order(clients, self._request_with_retries(spec, clients, messages)):
            if reply.problem is not None or reply.header is None:
                continue
            for task in tasks:
                correct, total = reply.header.counts.get(str(task), (0, 0))
                if total:
                    counts[task][self.plan.sites[reply.client]] = Count(correct, total)
        if cap is None and not masked:
            self.scores = {self.runner.federation.domain(task).name: sites for task, sites in counts.items()}
        return [_pooled_accuracy(sites) for sites in counts.values()]

    def set_model(self, model: FlatModel) -> None:
        self.runner.set_model(model)

    @property
    def workers(self) -> int:
        return len(self.plan.sites)

    def events(self) -> list[Event]:
        return []

    def close(self) -> None:
        """Sites and their processes are not started by this engine."""

    def checkpoint_state(self) -> tuple[dict[int, str], dict[str, Any]]:
        """Versions of the client states; the states themselves are stored by the sites."""
        self._checkpointed = (self._checkpointed[1], dict(self.versions))
        return {}, {
            "holders": self.payloads.to_json(),
            "versions": {str(client): version for client, version in self.versions.items()},
            "run": self.run,
            "num_requests": self.num_requests,
            "audit_head": self.collector.audit_head,
        }

    # --- requests ---------------------------------------------------------------------------------------------

    def _request_with_retries(
        self, spec: RequestSpec, clients: Sequence[int], messages: Messages
    ) -> Iterator[SiteReply]:
        """One reply per client. Without a quorum, requests that may still succeed are repeated as the policy says."""
        policy, remaining, usable, without_samples = self.plan.policy, list(clients), 0, 0
        for retries_left in range(policy.retries if policy.on_no_quorum == "retry" else 0, -1, -1):
            failed = []
            for reply in self._request(spec, remaining, messages):
                usable += reply.problem is None
                without_samples += reply.problem == NO_SAMPLES
                if reply.problem is not None and reply.retry:
                    failed.append(reply)
                else:
                    yield reply
            quorum = policy.quorum_size(len(clients) - without_samples)
            if not failed or not retries_left or usable >= quorum:
                yield from failed
                return
            remaining = [reply.client for reply in failed]
            sites = ", ".join(self.plan.sites[client] for client in remaining)
            log.warning("no quorum (%d of %d replies); retrying, as the policy says: %s", usable, quorum, sites)
            self.registry.wait(remaining, min(quorum - usable, len(remaining)), policy.wait_seconds)

    def _request(self, spec: RequestSpec, clients: Sequence[int], messages: Messages) -> Iterator[SiteReply]:
        """One request per client; a site that reports missing payloads gets a second request that includes them."""
        lacking = []
        for reply in self._send(spec, clients, messages):
            if reply.missing_payloads:
                self.payloads.forget(reply.client)
                lacking.append(reply.client)
            else:
                yield self._count(spec, reply)
        for reply in self._send(spec, lacking, messages) if lacking else ():
            problem = reply.problem
            if reply.missing_payloads:
                problem = wire.one_line(f"the site cannot store the payloads {', '.join(reply.missing_payloads)}")
            yield self._count(spec, replace(reply, problem=problem))

    def _send(self, spec: RequestSpec, clients: Sequence[int], messages: Messages) -> Iterator[SiteReply]:
        nodes = self.registry.refresh()
        yield from (SiteReply(client, NOT_CONNECTED, retry=True) for client in clients if client not in nodes)
        sent: dict[int, SentRequest] = {}
        outgoing: dict[int, Message] = {}
        records: dict[tuple[Any, ...], ArrayRecord] = {}
        self.num_requests += 1
        for client in clients:
            if client not in nodes:
                continue
            broadcast = messages(client)
            present = self.payloads.present(client, broadcast)
            new = {name: tensor for name, tensor in broadcast.payloads.items() if name not in present}
            request = self._make_request(spec, client, broadcast)
            key = tuple((name, id(tensor)) for name, tensor in broadcast.vectors.items())
            if key not in records:  # vectors that go to all sites are serialized once
                records[key] = wire.tensors_to_record(broadcast.vectors)
            outgoing[client] = wire.make_request(spec.kind, nodes[client], self._plan_json, request, records[key], new)
            once = sum(tensor.numel() * tensor.element_size() for tensor in new.values())
            sent[client] = SentRequest(request, broadcast, wire.message_size(outgoing[client]), once)
        max_bytes = self.plan.policy.max_reply_megabytes * 1e6
        for client, message in self._transport.send(outgoing, self.plan.policy.reply_seconds):
            if message is None:
                yield SiteReply(client, NO_REPLY, retry=True)
            else:
                reply = read_reply(spec.kind, message, sent[client], max_bytes)
                self._note_site_state(reply, sent[client])
                yield reply

    def _make_request(self, spec: RequestSpec, client: int, broadcast: Broadcast) -> SiteRequest:
        version = ""
        if spec.kind != wire.EVALUATE:
            version = f"{broadcast.task}.{broadcast.round}.{spec.query or 'train'}.{self.num_requests}"
        return SiteRequest(
            self.run,
            client,
            broadcast.task,
            broadcast.round,
            client_lr=spec.client_lr,
            query=spec.query,
            numbers=broadcast.numbers,
            roles=broadcast.roles,
            payloads={name: self.payloads.digest(name, tensor) for name, tensor in broadcast.payloads.items()},
            base=self.versions.get(client, ""),
            version=version,
            keep=sorted({versions[client] for versions in self._checkpointed if client in versions}),
            tasks=list(spec.tasks),
            cap=spec.cap,
            masked=spec.masked,
        )

    def _note_site_state(self, reply: SiteReply, sent: SentRequest) -> None:
        """After a usable reply it is certain that the site has the payloads and which client state it stores."""
        if reply.problem is not None or reply.header is None or reply.header.missing:
            return
        self.payloads.deliver(reply.client, sent.broadcast)
        if sent.request.version and reply.header.state_saved:
            self.versions[reply.client] = sent.request.version
        elif sent.request.version:
            self.versions.pop(reply.client, None)

    def _to_reply(self, reply: SiteReply, sent: Tensors) -> Reply:
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

    def _count(self, spec: RequestSpec, reply: SiteReply) -> SiteReply:
        if reply.problem is not None:
            self._refuse(reply.client, reply.problem, in_round=spec.kind == wire.TRAIN)
        return reply

    def _refuse(self, client: int, reason: str, *, in_round: bool = True) -> None:
        """Log and count a refused reply; `in_round`: also name it in the audit log's line of the round."""
        site = self.plan.sites[client]
        self.refusals[site] += 1
        if in_round:
            self.collector.add_refusal(site, reason)
        log.warning("site %s: %s", site, reason)


def _pooled_accuracy(sites: dict[str, Count]) -> float | None:
    total = sum(count.total for count in sites.values())
    return sum(count.correct for count in sites.values()) / total if total else None
