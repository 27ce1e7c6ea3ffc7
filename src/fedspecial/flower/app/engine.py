"""The engine of a real federation: the same loop, with Flower's Grid between the server half and the sites.

Every request is one message to one site. What comes back late, twice, for another round, with NaN, of another shape or
too large is refused, named and counted; what does not come is missing, which the quorum decides about. Replies are
handed on in the order in which sites were chosen, not in that of arrival, so that a run can be repeated bit for bit.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from fedspecial.core.messages import Broadcast, Tensors, Update
from fedspecial.core.vector import FlatModel
from fedspecial.engine.aggregate import not_finite
from fedspecial.engine.base import Messages, QueryReply, Reply, problem_with_result
from fedspecial.engine.client import NO_SAMPLES, ClientRunner
from fedspecial.engine.payloads import PayloadTracker
from fedspecial.flower.app import wire
from fedspecial.flower.app.arrays import Refused, Values
from fedspecial.flower.app.evidence import Evidence
from fedspecial.flower.app.plan import Plan
from fedspecial.flower.app.registry import SiteRegistry
from fedspecial.flower.app.transport import Transport
from fedspecial.flower.app.wire import ReplyHeader, Request
from fedspecial.flower.governance.promotion import Count
from fedspecial.methods.base import Query, QueryResult

log = logging.getLogger("fedspecial.flower")
NOT_HERE = "it is not connected"
SILENT = "it did not answer in time"


@dataclass
class SiteReply:
    """A site's usable reply, or the problem with it; `again` where asking once more may help."""

    client: int
    problem: str | None = None
    again: bool = False
    answered: ReplyHeader | None = None
    values: Values = field(default_factory=dict)
    deltas: Tensors = field(default_factory=dict)
    uploads: Tensors = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_once: int = 0


@dataclass(frozen=True)
class Sent:
    """One request as it went out. `bytes_once`: the part that is payloads, which are not sent again."""

    request: Request
    broadcast: Broadcast
    bytes_down: int
    bytes_once: int


@dataclass
class FlowerEngine:
    """versions: client → the version of its state that the server last heard of
    number:   how many requests of all kinds there were; it makes versions unique
    scores:   domain → site → right answers, as last counted on whole test sets
    refusals: site → how often something of it was refused
    needed:   usable answers that the last round needed
    """

    grid: Grid
    plan: Plan
    run: str
    place: ClientRunner
    payloads: PayloadTracker
    versions: dict[int, str] = field(default_factory=dict)
    number: int = 0
    evidence: Evidence = field(default_factory=Evidence)
    scores: dict[str, dict[str, Count]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    needed: int = 1

    def __post_init__(self) -> None:
        self._text = self.plan.to_json()
        self.roster = SiteRegistry(self.grid, self._text, self.run, self.plan.sites)
        self._post = Transport(self.grid, self._refuse)
        self._kept = (dict(self.versions), dict(self.versions))
        self._empty: set[tuple[int, int]] = set()

    def train(
        self, task: int, round: int, clients: Sequence[int], messages: Messages, client_lr: float
    ) -> Iterator[Reply]:
        """Sites that said they hold no samples of the task are not asked again, and no quorum counts on them."""
        able = [client for client in clients if (task, client) not in self._empty]
        self.evidence.begin([self.plan.sites[client] for client in able])
        known = [SiteReply(client, NO_SAMPLES) for client in clients if client not in able]
        for got in _in_order(clients, known, self._persist(wire.TRAIN, able, messages, client_lr=client_lr)):
            if got.problem == NO_SAMPLES:
                self._empty.add((task, got.client))
            yield self._reply(got, messages(got.client).vectors)
        self.needed = self.plan.policy.needed(sum((task, client) not in self._empty for client in clients))

    def query(self, query: Query) -> Iterator[QueryReply]:
        clients = list(range(len(self.plan.sites)) if query.clients is None else query.clients)
        for got in _in_order(clients, (), self._persist(wire.ASK, clients, query.message, stage=query.name)):
            answer, problem = None, got.problem
            if problem is None and got.answered is not None:
                answer = QueryResult(got.uploads, got.answered.numbers)
                if problem := problem_with_result(answer, got.client, query):
                    self._refuse(got.client, problem, audited=False)
            yield QueryReply(got.client, None if problem else answer, problem, got.bytes_up, got.bytes_down)

    def accuracies(
        self, messages: Messages, tasks: Sequence[int], *, cap: int | None = None, masked: bool = False
    ) -> list[float | None]:
        """Over the sites' own test samples, counted together; None for a domain that no site can test."""
        counts: dict[int, dict[str, Count]] = {task: {} for task in tasks}
        everyone, about = list(range(len(self.plan.sites))), {"tasks": list(tasks), "cap": cap, "masked": masked}
        for got in _in_order(everyone, (), self._persist(wire.EVALUATE, everyone, messages, **about)):
            told = got.answered.counts if got.answered is not None and got.problem is None else {}
            for task in tasks:
                correct, total = told.get(str(task), (0, 0))
                if total:
                    counts[task][self.plan.sites[got.client]] = Count(correct, total)
        if cap is None and not masked:
            self.scores = {self.place.federation.domain(task).name: sites for task, sites in counts.items()}
        return [_pooled(sites) for sites in counts.values()]

    def set_model(self, model: FlatModel) -> None:
        self.place.set_model(model)

    def checkpoint_state(self) -> tuple[dict[int, str], dict[str, Any]]:
        """Sites keep their own states; the checkpoint names versions. Two checkpoints back nobody goes."""
        self._kept = (self._kept[1], dict(self.versions))
        versions = {str(client): version for client, version in self.versions.items()}
        about = {"run": self.run, "number": self.number, "audit_head": self.evidence.head}
        return {}, {"holders": self.payloads.to_json(), "versions": versions, **about}

    # --- requests ---------------------------------------------------------------------------------------------

    def _persist(self, kind: str, clients: Sequence[int], messages: Messages, **about: Any) -> Iterator[SiteReply]:
        """One outcome per client. Those who may answer yet are asked again as the policy says, while a quorum lacks."""
        policy, left, usable, hopeless = self.plan.policy, list(clients), 0, 0
        for attempt in range(policy.retries if policy.on_missing == "retry" else 0, -1, -1):
            failed = []
            for got in self._exchange(kind, left, messages, **about):
                usable += got.problem is None
                hopeless += got.problem == NO_SAMPLES
                if got.problem is not None and got.again:
                    failed.append(got)
                else:
                    yield got
            needed = policy.needed(len(clients) - hopeless)
            if not failed or not attempt or usable >= needed:
                yield from failed
                return
            left = [got.client for got in failed]
            log.warning("asking %s again", ", ".join(self.plan.sites[client] for client in left))
            self.roster.wait(left, min(needed - usable, len(left)), policy.wait_seconds)

    def _exchange(self, kind: str, clients: Sequence[int], messages: Messages, **about: Any) -> Iterator[SiteReply]:
        """Ask these sites and hand out what comes; a site that lacks a payload gets it and is asked once more."""
        lacking = []
        for got in self._once(kind, clients, messages, **about):
            if got.problem is None and got.answered is not None and got.answered.missing:
                self.payloads.forget(got.client)
                lacking.append(got.client)
            else:
                yield self._counted(kind, got)
        for got in self._once(kind, lacking, messages, **about) if lacking else ():
            missing = got.answered.missing if got.answered is not None else []
            problem = got.problem or (wire.one_line(f"it cannot keep {', '.join(missing)}") if missing else None)
            yield self._counted(kind, replace(got, problem=problem))

    def _once(self, kind: str, clients: Sequence[int], messages: Messages, **about: Any) -> Iterator[SiteReply]:
        nodes = self.roster.refresh()
        yield from (SiteReply(client, NOT_HERE, again=True) for client in clients if client not in nodes)
        sent: dict[int, Sent] = {}
        out: dict[int, Message] = {}
        records: dict[tuple[Any, ...], ArrayRecord] = {}
        self.number += 1
        for client in clients:
            if client not in nodes:
                continue
            broadcast = messages(client)
            held = self.payloads.present(client, broadcast)
            new = {name: tensor for name, tensor in broadcast.payloads.items() if name not in held}
            request = self._request(kind, client, broadcast, **about)
            same = tuple((name, id(tensor)) for name, tensor in broadcast.vectors.items())
            if same not in records:  # what goes to all sites is put on the wire once
                records[same] = wire.to_record(broadcast.vectors)
            out[client] = wire.question(kind, nodes[client], self._text, request, records[same], new)
            once = sum(tensor.numel() * tensor.element_size() for tensor in new.values())
            sent[client] = Sent(request, broadcast, wire.size_of(out[client]), once)
        for client, reply in self._post.send(out, self.plan.policy.answer_seconds):
            yield SiteReply(client, SILENT, again=True) if reply is None else self._read(kind, reply, sent[client])

    def _request(self, kind: str, client: int, broadcast: Broadcast, **about: Any) -> Request:
        digests = {name: self.payloads.digest(name, tensor) for name, tensor in broadcast.payloads.items()}
        place, version = (broadcast.task, broadcast.round), ""
        if kind != wire.EVALUATE:
            version = f"{broadcast.task}.{broadcast.round}.{about.get('stage', 'train')}.{self.number}"
        keep = sorted({kept[client] for kept in self._kept if client in kept})
        return Request(
            self.run, client, *place, numbers=broadcast.numbers, roles=broadcast.roles, payloads=digests,
            base=self.versions.get(client, ""), version=version, keep=keep, **about,
        )  # fmt: skip

    def _read(self, kind: str, reply: Message, sent: Sent) -> SiteReply:
        request = sent.request
        got = SiteReply(request.client, bytes_down=sent.bytes_down, bytes_once=sent.bytes_once)
        try:
            if reply.has_error():
                return replace(got, problem=wire.one_line(f"it failed: {reply.error.reason}"), again=True)
            got.bytes_up = wire.size_of(reply)
            if got.bytes_up > (limit := self.plan.policy.max_megabytes * 1e6):
                raise Refused(f"its answer has {got.bytes_up} bytes, at most {limit:.0f} are looked at")
            got.answered = wire.answered_of(reply, request)
            if got.answered.problem is not None:
                return replace(got, problem=wire.one_line(got.answered.problem))
            if got.answered.missing:
                return got
            self._take(kind, reply, sent, got)
        except Refused as why:
            got.problem = str(why)
        return got

    def _take(self, kind: str, reply: Message, sent: Sent, got: SiteReply) -> None:
        """What a sound reply carries; only now is it true that the site holds payloads and a new state."""
        request, said = sent.request, got.answered
        assert said is not None
        got.uploads = wire.uploads_of(reply)
        if kind == wire.TRAIN:
            if not (said.steps and said.samples):
                raise Refused(f"it claims {said.steps} steps on {said.samples} samples")
            got.values = wire.values_of_reply(reply, sent.broadcast.vectors)
            got.deltas = _deltas(got.values, sent.broadcast.vectors)
            if problem := not_finite(got.deltas):
                raise Refused(problem)
        if any(right > total for right, total in said.counts.values()):
            raise Refused("it counts more right answers than samples")
        self.payloads.deliver(request.client, sent.broadcast)
        if request.version and said.kept:
            self.versions[request.client] = request.version
        elif request.version:
            self.versions.pop(request.client, None)

    def _reply(self, got: SiteReply, sent: Tensors) -> Reply:
        costs = (got.bytes_up, got.bytes_down, got.bytes_once)
        if got.problem is not None or got.answered is None:
            return Reply(got.client, None, got.problem or SILENT, *costs)
        said = got.answered
        update = Update(got.client, got.deltas, said.steps, said.samples, said.loss, said.numbers, got.uploads)
        self.evidence.answer(self.plan.sites[got.client], got.bytes_up, got.values, next(iter(got.deltas.values())))
        return Reply(got.client, update, None, *costs, sent, said.memory, said.paper_memory)

    def _counted(self, kind: str, got: SiteReply) -> SiteReply:
        if got.problem is not None:
            self._refuse(got.client, got.problem, audited=kind == wire.TRAIN)
        return got

    def _refuse(self, client: int, reason: str, *, audited: bool = True) -> None:
        """Named in the log, counted, and written to the round's line of the audit log."""
        site = self.plan.sites[client]
        self.refusals[site] += 1
        if audited:
            self.evidence.refuse(site, reason)
        log.warning("site %s: %s", site, reason)


def _deltas(values: Values, sent: Tensors) -> Tensors:
    """The updates that whole weights stand for: θ_m − θ."""
    found = {}
    for name, vector in sent.items():
        before = vector.detach().cpu().numpy()
        found[name] = torch.from_numpy(np.subtract(values[name], before)).to(vector.device)
    return found


def _in_order(clients: Sequence[int], known: Iterable[SiteReply], coming: Iterable[SiteReply]) -> Iterator[SiteReply]:
    """Outcomes in the order of `clients`, each as soon as those before it are there."""
    here: dict[int, SiteReply] = {}
    left = list(clients)
    for got in chain(known, coming):
        here[got.client] = got
        while left and left[0] in here:
            yield here.pop(left.pop(0))


def _pooled(sites: dict[str, Count]) -> float | None:
    total = sum(count.total for count in sites.values())
    return sum(count.correct for count in sites.values()) / total if total else None
