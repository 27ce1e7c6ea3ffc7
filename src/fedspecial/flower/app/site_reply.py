"""Reading a site's reply on the server: every field is checked before it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import torch
from flwr.app import Message

from fedspecial.core.messages import Broadcast, Tensors
from fedspecial.engine.aggregation.mean import not_finite
from fedspecial.flower.app import wire
from fedspecial.flower.app.wire import ReplyHeader, SiteRequest
from fedspecial.flower.arrays import NamedArrays, RefusedReply
from fedspecial.flower.logs import one_line


@dataclass(frozen=True)
class RequestSpec:
    """The part of a request that is the same for all sites.

    kind:  one of the message types in `wire`
    query: name of the method's query, for `wire.QUERY`
    tasks, cap, masked, complete: what is tested, for `wire.EVALUATE`
    """

    kind: str
    client_lr: float = 0.0
    query: str = ""
    tasks: tuple[int, ...] = ()
    cap: int | None = None
    masked: bool = False
    complete: bool = False


@dataclass(frozen=True)
class SentRequest:
    """A request that was sent. `bytes_once`: the size of its payloads, which are not sent again."""

    request: SiteRequest
    broadcast: Broadcast
    bytes_down: int
    bytes_once: int


@dataclass
class SiteReply:
    """A usable reply of a site, or the problem with it. `retry`: repeating the request may help."""

    client: int
    problem: str | None = None
    retry: bool = False
    header: ReplyHeader | None = None
    vectors: NamedArrays = field(default_factory=dict)
    deltas: Tensors = field(default_factory=dict)
    uploads: Tensors = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_once: int = 0

    @property
    def missing_payloads(self) -> list[str]:
        return self.header.missing if self.problem is None and self.header is not None else []


def read_reply(kind: str, message: Message, sent: SentRequest, max_bytes: float) -> SiteReply:
    """Check a reply; a refused one has a `problem` and no vectors."""
    reply = SiteReply(sent.request.client, bytes_down=sent.bytes_down, bytes_once=sent.bytes_once)
    if message.has_error():
        return replace(reply, problem=one_line(f"the site failed: {message.error.reason}"), retry=True)
    try:
        reply.bytes_up = wire.message_size(message)
        if reply.bytes_up > max_bytes:
            raise RefusedReply(f"the reply has {reply.bytes_up} bytes, the limit is {max_bytes:.0f}")
        reply.header = wire.read_header(message)
        if reply.header.problem is not None:
            return replace(reply, problem=one_line(reply.header.problem), retry=reply.header.retry)
        wire.check_header(reply.header, sent.request)
        if not reply.header.missing:
            _read_content(kind, message, sent.broadcast.vectors, reply, reply.header)
    except RefusedReply as reason:
        reply.problem = str(reason)
    return reply


def _read_content(kind: str, message: Message, sent: Tensors, reply: SiteReply, header: ReplyHeader) -> None:
    reply.uploads = wire.read_uploads(message)
    if kind == wire.TRAIN:
        if not (header.steps and header.samples):
            raise RefusedReply(f"it claims {header.steps} steps on {header.samples} samples")
        reply.vectors = wire.read_vectors(message, sent)
        reply.deltas = _deltas(reply.vectors, sent)
        if problem := not_finite(reply.deltas):
            raise RefusedReply(problem)
    if any(correct > total for correct, total in header.counts.values()):
        raise RefusedReply("it claims more correct predictions than samples")


def _deltas(vectors: NamedArrays, sent: Tensors) -> Tensors:
    """θ_m − θ for each vector."""
    deltas = {}
    for name, vector in sent.items():
        before = vector.detach().cpu().numpy()
        deltas[name] = torch.from_numpy(np.subtract(vectors[name], before)).to(vector.device)
    return deltas


def in_order(clients: Sequence[int], *replies: Iterable[SiteReply]) -> Iterator[SiteReply]:
    """Replies in the order of `clients`, each as soon as those before it have arrived."""
    arrived: dict[int, SiteReply] = {}
    remaining = list(clients)
    for reply in chain(*replies):
        arrived[reply.client] = reply
        while remaining and remaining[0] in arrived:
            yield arrived.pop(remaining.pop(0))
