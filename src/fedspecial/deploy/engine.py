"""The engine of a real federation: the same loop, with Flower's Grid between the server half and the sites.

Every request is one message to one site. What comes back late, twice, for another round, with NaN, of another shape or
too large is refused, named and counted; what does not come is missing, which the quorum decides about.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fedspecial.core.messages import Broadcast, Tensors, Update
from fedspecial.core.vector import FlatModel
from fedspecial.deploy import wire
from fedspecial.deploy.arrays import Refused
from fedspecial.deploy.evidence import Evidence
from fedspecial.deploy.plan import Plan
from fedspecial.deploy.promotion import Count
from fedspecial.deploy.roster import Roster
from fedspecial.deploy.wire import Answered, Request
from fedspecial.engine.client import Workplace
from fedspecial.engine.inprocess import Heard, Messages, Reply
from fedspecial.engine.payloads import Payloads
from fedspecial.methods.base import Answer, Ask

log = logging.getLogger("fedspecial.deploy")
NOT_HERE = "it is not connected"
SILENT = "it did not answer in time"


@dataclass
class Got:
    """A site's usable reply, or the problem with it; `again` where asking once more may help."""

    client: int
    problem: str | None = None
    again: bool = False
    answered: Answered | None = None
    vectors: Tensors = field(default_factory=dict)
    uploads: Tensors = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_once: int = 0


@dataclass
class FlowerEngine:
    """versions: client → the version of its state that the server last heard of
    scores:   domain → site → right answers, as last counted on whole test sets
    refusals: site → how often something of it was refused
    """

    grid: Grid
    plan: Plan
    run: str
    place: Workplace
    payloads: Payloads
    versions: dict[int, str] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    scores: dict[str, dict[str, Count]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    poll_seconds: float = 0.2

    def __post_init__(self) -> None:
        self._text = self.plan.to_json()
        self.roster = Roster(self.grid, self._text, self.run, self.plan.sites, min(60.0, self.plan.policy.wait_seconds))
        self._kept = (dict(self.versions), dict(self.versions))
        self._overdue: dict[str, int] = {}

    # --- the three things an engine does ----------------------------------------------------------------------

    def train(self, clients: Sequence[int], messages: Messages, client_lr: float) -> Iterator[Reply]:
        """Replies as they come. Sites that are missing are asked again as the plan says, until there is a quorum."""
        self.evidence.begin([self.plan.sites[client] for client in clients])
        left, accepted, policy = list(clients), 0, self.plan.policy
        retries = policy.retries if policy.on_missing == "retry" else 0
        for attempt in range(1 + retries):
            if attempt:
                log.warning("asking %s again", ", ".join(self.plan.sites[client] for client in left))
            last, again = attempt == retries, []
            for got in self._exchange(wire.TRAIN, left, messages, client_lr=client_lr):
                if got.problem is not None and got.again and not last:
                    again.append(got.client)
                    continue
                reply = self._reply(got, messages(got.client).vectors)
                accepted += reply.update is not None
                yield reply
            left = again
            if not left:
                return
            if policy.enough(accepted, len(clients)):
                break
        yield from (Reply(client, None, SILENT) for client in left)

    def ask(self, ask: Ask) -> Iterator[Heard]:
        clients = range(len(self.plan.sites)) if ask.clients is None else ask.clients
        for got in self._exchange(wire.ASK, list(clients), ask.message, stage=ask.stage):
            answer = None
            if got.problem is None and got.answered is not None:
                answer = Answer(got.uploads, got.answered.numbers)
            yield Heard(got.client, answer, got.problem, got.bytes_up, got.bytes_down)

    def accuracies(
        self, messages: Messages, tasks: Sequence[int], *, cap: int | None = None, masked: bool = False
    ) -> list[float | None]:
        """Over the sites' own test samples, counted together; None for a domain that no site can test."""
        counts: dict[int, dict[str, Count]] = {task: {} for task in tasks}
        everyone = list(range(len(self.plan.sites)))
        for got in self._exchange(wire.EVALUATE, everyone, messages, tasks=list(tasks), cap=cap, masked=masked):
            if got.answered is None:
                continue
            for task, (correct, total) in got.answered.counts.items():
                if int(task) in counts and 0 <= correct <= total and total:
                    counts[int(task)][self.plan.sites[got.client]] = Count(correct, total)
        if cap is None and not masked:
            self.scores = {self.place.federation.domain(task).name: sites for task, sites in counts.items()}
        return [_pooled(sites) for sites in counts.values()]

    def grown(self, model: FlatModel) -> None:
        self.place.grown(model)

    def kept(self) -> tuple[dict[int, str], dict[str, Any]]:
        """Sites keep their own states; the checkpoint names versions. Two checkpoints back nobody goes."""
        self._kept = (self._kept[1], dict(self.versions))
        versions = {str(client): version for client, version in self.versions.items()}
        holders = self.payloads.to_json()
        return {}, {"holders": holders, "versions": versions, "run": self.run, "audit_head": self.evidence.head}

    # --- one request to several sites -------------------------------------------------------------------------

    def _exchange(self, kind: str, clients: Sequence[int], messages: Messages, **about: Any) -> Iterator[Got]:
        """Ask these sites and hand out what comes; a site that lacks a payload gets it and is asked once more."""
        lacking = []
        for got in self._once(kind, clients, messages, **about):
            if got.answered is not None and got.answered.missing:
                self.payloads.forget(got.client)
                lacking.append(got.client)
            else:
                yield self._counted(got)
        for got in self._once(kind, lacking, messages, **about) if lacking else ():
            missing = got.answered.missing if got.answered is not None else []
            problem = got.problem or (f"it cannot keep {', '.join(missing)}" if missing else None)
            yield self._counted(replace(got, problem=problem))

    def _once(self, kind: str, clients: Sequence[int], messages: Messages, **about: Any) -> Iterator[Got]:
        nodes = self.roster.refresh()
        yield from (Got(client, NOT_HERE, again=True) for client in clients if client not in nodes)
        sent: dict[str, tuple[Request, Broadcast, int, int]] = {}
        for client in clients:
            if client not in nodes:
                continue
            broadcast = messages(client)
            held = self.payloads.held(client, broadcast)
            new = {name: tensor for name, tensor in broadcast.payloads.items() if name not in held}
            request = self._request(kind, client, broadcast, **about)
            message = wire.question(kind, nodes[client], self._text, request, broadcast.vectors, new)
            once = sum(tensor.numel() * tensor.element_size() for tensor in new.values())
            name = next(iter(self.grid.push_messages([message])), "")
            sent[name] = (request, broadcast, wire.size_of(message), once)
        deadline = time.monotonic() + self.plan.policy.answer_seconds
        waiting = set(sent)
        while waiting:
            for reply in self.grid.pull_messages([*sorted(waiting), *self._overdue]):
                name = reply.metadata.reply_to_message_id
                if name not in waiting:
                    self._refuse_stray(name, sent)
                    continue
                waiting.discard(name)
                yield self._read(kind, reply, *sent[name])
            if waiting and time.monotonic() >= deadline:
                break
            if waiting:
                time.sleep(self.poll_seconds)
        for name in sorted(waiting):
            self._overdue[name] = sent[name][0].client
            yield Got(sent[name][0].client, SILENT, again=True)

    def _request(self, kind: str, client: int, broadcast: Broadcast, **about: Any) -> Request:
        digests = {name: self.payloads.digest(name, tensor) for name, tensor in broadcast.payloads.items()}
        version = ""
        if kind != wire.EVALUATE:
            version = f"{broadcast.task}.{broadcast.round}.{about.get('stage', 'train')}"
        keep = sorted({kept[client] for kept in self._kept if client in kept})
        place = (broadcast.task, broadcast.round)
        return Request(
            self.run, client, *place, numbers=broadcast.numbers, roles=broadcast.roles, payloads=digests,
            base=self.versions.get(client, ""), version=version, keep=keep, **about,
        )  # fmt: skip

    def _read(
        self, kind: str, reply: Message, request: Request, broadcast: Broadcast, bytes_down: int, bytes_once: int
    ) -> Got:
        got = Got(request.client, bytes_down=bytes_down, bytes_once=bytes_once)
        try:
            if reply.has_error():
                return replace(got, problem=f"it failed: {reply.error.reason}", again=True)
            got.bytes_up = wire.size_of(reply)
            if got.bytes_up > (limit := self.plan.policy.max_megabytes * 1e6):
                raise Refused(f"its answer has {got.bytes_up} bytes, at most {limit:.0f} are looked at")
            got.answered = wire.answered_of(reply, request)
            got.problem = got.answered.problem
            if got.problem is None and not got.answered.missing:
                got.uploads = wire.uploads_of(reply)
                if kind == wire.TRAIN:
                    got.vectors = wire.vectors_of(reply, broadcast.vectors)
                self.payloads.deliver(request.client, broadcast)
                if request.version:
                    self.versions[request.client] = request.version
        except Refused as why:
            got.problem = str(why)
        return got

    def _reply(self, got: Got, sent: Tensors) -> Reply:
        """The update that whole weights stand for: θ_m − θ."""
        costs = (got.bytes_up, got.bytes_down, got.bytes_once)
        if got.problem is not None or got.answered is None:
            return Reply(got.client, None, got.problem or SILENT, *costs)
        said = got.answered
        deltas = {name: torch.sub(vector.to(sent[name].device), sent[name]) for name, vector in got.vectors.items()}
        update = Update(got.client, deltas, said.steps, said.samples, said.loss, said.numbers, got.uploads)
        self.evidence.answer(self.plan.sites[got.client], got.bytes_up, got.vectors, next(iter(deltas.values())))
        return Reply(got.client, update, None, *costs, sent, said.memory, said.paper_memory)

    def _counted(self, got: Got) -> Got:
        if got.problem is not None:
            site = self.plan.sites[got.client]
            self.refusals[site] += 1
            log.warning("site %s: %s", site, got.problem)
        return got

    def _refuse_stray(self, name: str, sent: dict[str, Any]) -> None:
        """An answer that nobody waits for: a second one, or one to a request whose time is over."""
        client = self._overdue.pop(name, None)
        if client is None:
            client = sent[name][0].client if name in sent else None
            reason = "it answers twice"
        else:
            reason = "it answers late"
        site = self.plan.sites[client] if client is not None else "unknown"
        self.refusals[site] += 1
        self.evidence.stray(site, reason)
        log.warning("site %s: %s", site, reason)


def _pooled(sites: dict[str, Count]) -> float | None:
    total = sum(count.total for count in sites.values())
    return sum(count.correct for count in sites.values()) / total if total else None
