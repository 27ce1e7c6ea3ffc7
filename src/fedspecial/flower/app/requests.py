"""Requests to the sites: sending them, collecting the replies, repeating requests that failed.

Each request is one message to one site. What a site stores after a reply (payloads, a version of the client state) is
noted here, because the next request depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedspecial.core.clock_events import Loss
from fedspecial.core.messages import Broadcast
from fedspecial.core.refusals import NO_SAMPLES
from fedspecial.engine.base import Messages
from fedspecial.engine.clients.payloads import PayloadTracker
from fedspecial.flower.app import wire
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.app.registry import SiteRegistry
from fedspecial.flower.app.site_reply import RequestSpec, SentRequest, SiteReply, read_reply
from fedspecial.flower.app.transport import Closing, Transport
from fedspecial.flower.app.wire import SiteRequest
from fedspecial.flower.logs import one_line

log = logging.getLogger("fedspecial.flower")
NOT_CONNECTED = "the site is not connected"
NO_REPLY = "no reply before the deadline"
BUSY = "the site is still at work on an earlier round"


@dataclass
class SiteRequests:
    """
    plan_json:    what the sites receive of the plan
    run:          identifier of the run
    versions:     client → version of its client state at the site
    num_requests: number of request batches so far; it makes versions unique
    receipt:      the signed head of the audit log, for the sites
    kept_versions: as `versions`, in earlier checkpoints to which the run may be set back
    refuse:       called with (client, reason, whether it belongs to a round) for each reply that is not used
    """

    grid: Grid
    plan: FederationPlan
    plan_json: str
    run: str
    registry: SiteRegistry
    payloads: PayloadTracker
    refuse: Callable[[int, str, bool], None]
    versions: dict[int, str] = field(default_factory=dict)
    num_requests: int = 0
    receipt: Callable[[], dict[str, Any]] = dict
    kept_versions: Sequence[dict[int, str]] = ()

    def __post_init__(self) -> None:
        self._transport = Transport(self.grid, self.registry, lambda client, reason: self.refuse(client, reason, True))
        # Versions in the last two checkpoints, and in those to which the run may be set back.
        self._checkpointed = [*self.kept_versions, dict(self.versions), dict(self.versions)]

    def checkpoint_state(self) -> dict[str, Any]:
        """Versions of the client states; the states themselves are stored by the sites."""
        self._checkpointed = [*self._checkpointed, dict(self.versions)][-2 - self.plan.policy.keep_checkpoints :]
        return {
            "holders": self.payloads.to_json(),
            "versions": {str(client): version for client, version in self.versions.items()},
            "run": self.run,
            "num_requests": self.num_requests,
        }

    def with_retries(self, spec: RequestSpec, clients: Sequence[int], messages: Messages) -> Iterator[SiteReply]:
        """One reply per client. Without a quorum, requests that may still succeed are repeated as the policy says."""
        policy, remaining, usable, without_samples = self.plan.policy, list(clients), 0, 0

        def quorum_size() -> int:
            return policy.quorum_size(len(clients) - without_samples)

        closing = Closing(lambda: usable >= quorum_size(), policy.grace_seconds)
        retries = policy.retries if policy.on_no_quorum == "retry" else 0
        for retries_left in range(retries, -1, -1):
            failed = []
            for reply in self._request(spec, remaining, messages, closing, repeated=retries_left < retries):
                usable += reply.problem is None
                without_samples += reply.problem == NO_SAMPLES
                if reply.problem is not None and reply.retry:
                    failed.append(reply)
                else:
                    yield reply
            quorum = quorum_size()
            if not failed or not retries_left or usable >= quorum:
                yield from failed
                return
            remaining = [reply.client for reply in failed]
            sites = ", ".join(self.plan.sites[client] for client in remaining)
            log.warning("no quorum (%d of %d replies); retrying, as the policy says: %s", usable, quorum, sites)
            self.registry.wait(remaining, min(quorum - usable, len(remaining)), policy.wait_seconds)

    def _request(
        self, spec: RequestSpec, clients: Sequence[int], messages: Messages, closing: Closing, *, repeated: bool
    ) -> Iterator[SiteReply]:
        """One request per client; a site that reports missing payloads gets a second request that includes them.

        A repeated request is sent only to sites that do not answer the first one within another `reply_seconds`. A site
        that is still at work on an earlier round is not asked to train: it would fall further and further behind.
        """
        lacking, asked = [], list(clients)
        if repeated:
            for reply in self._under_way(spec, clients, messages, closing):
                asked.remove(reply.client)
                yield self._count(spec, reply)
        elif spec.kind == wire.TRAIN:
            busy = {client for client in clients if self._transport.under_way(client, self.plan.policy.reply_seconds)}
            asked = [client for client in clients if client not in busy]
            yield from (self._count(spec, SiteReply(client, BUSY, retry=True)) for client in clients if client in busy)
        for reply in self._send(spec, asked, messages, closing):
            if reply.missing_payloads:
                self.payloads.forget(reply.client)
                lacking.append(reply.client)
            else:
                yield self._count(spec, reply)
        for reply in self._send(spec, lacking, messages, closing) if lacking else ():
            problem = reply.problem
            if reply.missing_payloads:
                problem = one_line(f"the site cannot store the payloads {', '.join(reply.missing_payloads)}")
            yield self._count(spec, replace(reply, problem=problem))

    def _under_way(
        self, spec: RequestSpec, clients: Sequence[int], messages: Messages, closing: Closing
    ) -> Iterator[SiteReply]:
        """Replies to the requests of an earlier attempt, which may only be late."""
        keys = {client: _key(spec, messages(client)) for client in clients}
        for _, message, sent in self._transport.collect(keys, self.plan.policy.reply_seconds, closing):
            if message is not None and sent is not None:
                reply = self._read(spec, message, sent)
                if not reply.missing_payloads:
                    yield reply

    def _send(
        self, spec: RequestSpec, clients: Sequence[int], messages: Messages, closing: Closing
    ) -> Iterator[SiteReply]:
        nodes = self.registry.refresh()
        yield from (SiteReply(client, NOT_CONNECTED, retry=True) for client in clients if client not in nodes)
        outgoing = self._outgoing(spec, [client for client in clients if client in nodes], messages, nodes)
        self._transport.push(outgoing)
        keys = {client: what for client, (_, what, _) in outgoing.items()}
        for client, answer, asked in self._transport.collect(keys, self.plan.policy.reply_seconds, closing):
            if answer is None or asked is None:
                yield SiteReply(client, NO_REPLY, retry=True)
            else:
                yield self._read(spec, answer, asked)

    # --- asynchronous mode: questions that nobody waits for ---------------------------------------------------

    def post(self, spec: RequestSpec, client: int, message: Broadcast) -> None:
        """Ask a connected site to train; `arrived` returns its reply."""
        self._transport.push(self._outgoing(spec, [client], lambda _: message, self.registry.nodes), posted=True)

    def refresh(self) -> None:
        self._transport.refresh()

    def arrived(self) -> list[SiteReply]:
        """The replies to posted requests since the last call, checked."""
        return [self._read(RequestSpec(wire.TRAIN), message, sent) for message, sent in self._transport.arrived()]

    def given_up(self, clients: Collection[int]) -> list[tuple[int, Loss]]:
        """Clients that will not answer what was posted to them: they were restarted, or took too long."""
        seconds, found = self.plan.policy.reply_seconds, list[tuple[int, Loss]]()
        for client in clients:
            if not self._transport.under_way(client, seconds):
                restarted = not self._transport.asked(client)
                found.append((client, "dropped out" if restarted else "after the deadline"))
        self.withdraw([client for client, _ in found])
        return found

    def withdraw(self, clients: Collection[int]) -> None:
        """Forget what was posted to these clients."""
        self._transport.withdraw(list(clients))

    def _outgoing(
        self, spec: RequestSpec, clients: Sequence[int], messages: Messages, nodes: Mapping[int, int]
    ) -> dict[int, tuple[Message, Hashable, SentRequest]]:
        outgoing: dict[int, tuple[Message, Hashable, SentRequest]] = {}
        records: dict[tuple[Any, ...], ArrayRecord] = {}
        self.num_requests += 1
        for client in clients:
            broadcast = messages(client)
            present = self.payloads.present(client, broadcast)
            new = {name: tensor for name, tensor in broadcast.payloads.items() if name not in present}
            request = self._make_request(spec, client, broadcast)
            key = tuple((name, id(tensor)) for name, tensor in broadcast.vectors.items())
            if key not in records:  # vectors that go to all sites are serialized once
                records[key] = wire.tensors_to_record(broadcast.vectors)
            message = wire.make_request(spec.kind, nodes[client], self.plan_json, request, records[key], new)
            once = sum(tensor.numel() * tensor.element_size() for tensor in new.values())
            sent = SentRequest(request, broadcast, wire.message_size(message), once)
            outgoing[client] = (message, _key(spec, broadcast), sent)
        return outgoing

    def _read(self, spec: RequestSpec, message: Message, sent: SentRequest) -> SiteReply:
        reply = read_reply(spec.kind, message, sent, self.plan.policy.max_reply_megabytes * 1e6)
        self._note_site_state(reply, sent)
        return reply

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
            complete=spec.complete,
            audit=self.receipt(),
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

    def _count(self, spec: RequestSpec, reply: SiteReply) -> SiteReply:
        if reply.problem is not None:
            self.refuse(reply.client, reply.problem, spec.kind == wire.TRAIN)
        return reply


def _key(spec: RequestSpec, broadcast: Broadcast) -> Hashable:
    """Equal for requests of the same round and model. The version of a tensor changes when it is written to."""
    vectors = tuple((name, tensor.data_ptr(), tensor._version) for name, tensor in broadcast.vectors.items())
    return spec, broadcast.task, broadcast.round, vectors
