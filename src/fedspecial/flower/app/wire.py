"""The messages between server and sites, as Flower records.

To a site:   ``arrays`` (the vectors, as full values), ``payloads`` (those the site does not have yet), ``config`` (plan
             and request as JSON).
To the server: ``arrays`` (the same vectors after training, as full values, so that Flower's clipping and robust
             strategies can be applied to them; the server computes the differences), ``uploads``, ``metrics``,
             ``config`` (the reply header as JSON).
The header of an array is checked against the vector that was sent before memory is allocated for the array.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from fedspecial import __version__
from fedspecial.flower.app.release import release_problem
from fedspecial.flower.arrays import (
    NamedArrays,
    RefusedReply,
    arrays_to_record,
    is_finite,
    read_array,
    record_to_arrays,
)
from fedspecial.flower.governance.site_settings import PolicyError
from fedspecial.flower.logs import is_plain, one_line

if TYPE_CHECKING:  # a site that only identifies itself does not need torch
    from torch import Tensor

    from fedspecial.core.messages import Broadcast, Tensors

Numbers = dict[str, int | float]


def _plain(text: str) -> str:
    if not is_plain(text):
        raise ValueError("not plain text")
    return text


# Bounds of what a site may send. They are far above honest values, and low enough that no sum of them overflows.
LARGEST_COUNT = 10**12
LARGEST_NUMBER = 1e30
Name = Annotated[str, Field(max_length=200), AfterValidator(_plain)]
Text = Annotated[str, Field(max_length=10_000)]
Bounded = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Memory = Annotated[int, Field(ge=0, le=2**60)]
Finite = Annotated[float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, allow_inf_nan=False)]
FiniteInteger = Annotated[int, Field(ge=-LARGEST_COUNT, le=LARGEST_COUNT)]
MetricValue = Finite | None | Annotated[list[Finite | None], Field(max_length=100_000)]

TRAIN, EVALUATE, QUERY, IDENTIFY = "train", "evaluate", "query.method", "query.identify"
"""Flower's message types; "query.NAME" calls the function that is registered with ``@app.query("NAME")``."""


@validated(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class SiteRequest:
    """A request to one site, without the arrays.

    run:      identifies the run, so that a site does not mix states of different runs
    query:    name of the method's query, for requests of that kind
    payloads: name → hash of each payload
    base:     version of the client state from which the site starts
    version:  version under which the site stores the client state afterwards
    keep:     versions that the server may still return to
    audit:    the signed head of the server's audit log, a `Receipt`
    release:  the server's version of fedspecial

    Types are validated at the site, since it does not trust the server either.
    """

    run: Name
    client: FiniteInteger
    task: FiniteInteger = 0
    round: FiniteInteger = 0
    client_lr: float = 0.0
    query: Name = ""
    numbers: Numbers = Field(default_factory=dict)
    roles: dict[str, str] = Field(default_factory=dict)
    payloads: dict[str, str] = Field(default_factory=dict)
    base: Name = ""
    version: Name = ""
    keep: list[Name] = Field(default_factory=list)
    tasks: list[int] = Field(default_factory=list)
    cap: Annotated[int, Field(ge=1)] | None = None
    masked: bool = False
    complete: bool = False
    frozen: Name = ""
    audit: dict[str, Any] = Field(default_factory=dict)
    release: Name = __version__


@validated(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class ReplyHeader:
    """A site's reply without the arrays. Types and ranges are validated, since the site is not trusted.

    problem:     why there is no update
    retry:       repeating the request may help
    untested:    task → why the site cannot test it, for requests of tests
    missing:     payloads that the site does not have
    state_saved: the site stored a client state under the requested version
    counts:      task → correct predictions (0 if the objective is not classification) and number of samples
    metrics:     task → the metrics of the objective by name
    release:     the site's version of fedspecial
    frozen:      hash of the frozen part of the site's model, in the reply to a request that contains the server's
    """

    site: Name
    client: FiniteInteger
    task: FiniteInteger
    round: FiniteInteger
    problem: Text | None = None
    retry: bool = False
    untested: Annotated[dict[Name, Text], Field(max_length=1000)] = Field(default_factory=dict)
    missing: Annotated[list[Name], Field(max_length=1000)] = Field(default_factory=list)
    state_saved: bool = False
    steps: Bounded = 0
    samples: Bounded = 0
    loss: Finite = 0.0
    numbers: Annotated[dict[Name, FiniteInteger | Finite], Field(max_length=1000)] = Field(default_factory=dict)
    memory: Memory = 0
    paper_memory: Memory = 0
    counts: dict[Name, tuple[Bounded, Bounded]] = Field(default_factory=dict)
    metrics: dict[Name, Annotated[dict[Name, MetricValue], Field(max_length=1000)]] = Field(default_factory=dict)
    release: Name = __version__
    frozen: Name = ""


@validated(frozen=True, config=ConfigDict(strict=True, extra="ignore"))
class _Release:
    release: Name = ""


_HEADER, _REQUEST, _RELEASE = TypeAdapter(ReplyHeader), TypeAdapter(SiteRequest), TypeAdapter(_Release)


def make_request(
    kind: str, node: int, plan: str, request: SiteRequest, arrays: ArrayRecord | None, payloads: Mapping[str, Tensor]
) -> Message:
    """The message to a site; `payloads` are those that it does not have yet."""
    content = RecordDict({"config": ConfigRecord({"plan": plan, "request": json.dumps(vars(request))})})
    if arrays:
        content["arrays"] = arrays
    if payloads:
        content["payloads"] = tensors_to_record(payloads)
    return Message(content, dst_node_id=node, message_type=kind)


def read_request(message: Message) -> tuple[str, SiteRequest]:
    """(plan as JSON, request) of a message that a site received; raises `PolicyError` if it cannot be used."""
    try:
        config = message.content["config"]
        text = str(config["request"])
        # Checked before the rest is read, because another version may have other fields.
        if problem := release_problem(_release(text), "the server"):
            raise PolicyError(problem)
        return str(config["plan"]), _REQUEST.validate_json(text)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"][:2])
        raise PolicyError(one_line(f"the request is invalid ({place or 'not JSON'})")) from None
    except (KeyError, TypeError):
        raise PolicyError("the request is missing") from None


def read_broadcast(message: Message, request: SiteRequest, payloads: Mapping[str, Tensor]) -> Broadcast:
    """The broadcast in a message. `payloads`: hash → payload, both stored ones and those of this message."""
    from fedspecial.core.messages import Broadcast

    vectors = read_tensors(message, "arrays")
    named = {name: payloads[digest] for name, digest in request.payloads.items()}
    return Broadcast(request.task, request.round, vectors, named, request.numbers, request.roles)


def read_tensors(message: Message, name: str) -> Tensors:
    """The tensors of the record with this name; empty if there is no such record."""
    record = message.content.get(name)
    return record_to_tensors(record) if isinstance(record, ArrayRecord) else {}


def make_reply(message: Message, header: ReplyHeader, vectors: Tensors, uploads: Tensors) -> Message:
    """A site's reply; ``num-examples`` is the weight that Flower's own strategies use."""
    content = RecordDict(
        {
            "metrics": MetricRecord({"num-examples": header.samples, "steps": header.steps, "loss": header.loss}),
            "config": ConfigRecord({"reply": json.dumps(vars(header))}),
        }
    )
    if vectors:
        content["arrays"] = tensors_to_record(vectors)
    if uploads:
        content["uploads"] = tensors_to_record(uploads)
    return Message(content, reply_to=message)


def read_header(reply: Message) -> ReplyHeader:
    """The header of a reply; raises `RefusedReply` if it is invalid."""
    try:
        text = str(reply.content["config"]["reply"])
        if problem := release_problem(_release(text), "the site"):
            raise RefusedReply(problem)
        return _HEADER.validate_json(text)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"][:2])
        raise RefusedReply(f"the header of the reply is invalid ({place or 'not JSON'})") from None
    except (KeyError, TypeError):
        raise RefusedReply("the header of the reply is missing") from None


def _release(text: str) -> str:
    """The version in a header or request, read before the rest, because another version may have other fields."""
    try:
        return one_line(_RELEASE.validate_json(text).release, 40)
    except ValidationError:
        return __version__  # it is refused for what it is


def check_header(header: ReplyHeader, request: SiteRequest) -> None:
    """Raise `RefusedReply` if the header of a reply does not match the request."""
    if (header.task, header.round) != (request.task, request.round):
        raise RefusedReply(f"the reply is for task {header.task} round {header.round + 1}")
    if header.client != request.client:
        raise RefusedReply(f"the reply is from client {header.client}")


def read_vectors(reply: Message, sent: Tensors) -> NamedArrays:
    """The vectors of a reply, without a copy; raises `RefusedReply` if names, shapes or types are not those sent."""
    record = reply.content.get("arrays")
    if not isinstance(record, ArrayRecord):
        raise RefusedReply("the reply contains no vectors")
    if odd := sent.keys() ^ record.keys():
        raise RefusedReply(f"'{min(odd)}' " + ("is missing" if min(odd) in sent else "was not sent"))
    return {name: read_array(name, record[name], like=tensor.detach().cpu().numpy()) for name, tensor in sent.items()}


def read_uploads(reply: Message) -> Tensors:
    """Tensors for the method's server half, which are not averaged; raises `RefusedReply` on NaN."""
    record = reply.content.get("uploads")
    if not isinstance(record, ArrayRecord):
        return {}
    for name, value in record_to_arrays(record).items():
        if not is_finite(value):
            raise RefusedReply(f"'{name}' contains NaN or infinity")
    return record_to_tensors(record)


def message_size(message: Message) -> int:
    """Serialized size of a message's records, in bytes."""
    size = 0
    for record in message.content.values():
        if isinstance(record, ArrayRecord):
            size += sum(len(array.data) for array in record.values())
        elif isinstance(record, ConfigRecord):
            size += sum(len(str(value)) for value in record.values())
    return size


def tensors_to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """bfloat16 would come back as float32, since NumPy does not have it; no vector of ours is bfloat16."""
    return arrays_to_record({name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()})


def record_to_tensors(record: ArrayRecord) -> Tensors:
    import torch

    return {name: torch.from_numpy(value.copy()) for name, value in record_to_arrays(record).items()}
