"""Requests to the sites: sending them, collecting the replies, repeating requests that failed.

Each request is one message to one site. What a site stores after a reply (payloads, a version of the client state) is
noted here, because the next request depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedspecial.core.messages import Broadcast
from fedspecial.engine.base import Messages
from fedspecial.engine.client import NO_SAMPLES
from fedspecial.engine.payloads import PayloadTracker
from fedspecial.flower.app import wire
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.app.registry import SiteRegistry
from fedspecial.flower.app.site_reply import RequestSpec, SentRequest, SiteReply, read_reply
from fedspecial.flower.app.transport import Transport
from fedspecial.flower.app.wire import SiteRequest

log = logging.getLogger("fedspecial.flower")
NOT_CONNECTED = "the site is not connected"
NO_REPLY = "no reply before the deadline"


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
        self._transport = Transport(self.grid, lambda client, reason: self.refuse(client, reason, True))
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
            outgoing[client] = wire.make_request(spec.kind, nodes[client], self.plan_json, request, records[key], new)
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
