"""Our messages on Flower's wire.

Down: ``arrays`` (the vectors, whole), ``payloads`` (those the site lacks), ``config`` (plan and request as JSON).
Up:   ``arrays`` (the same vectors, whole, as the site left them, so that Flower's clipping and robust strategies mean
what they say; the server subtracts), ``uploads``, ``metrics``, ``config`` (the answer as JSON).
Before memory is taken for an array, its header is held against what was sent or against the limit of sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from fedspecial.flower.app.arrays import Refused, Values, is_finite, read, record_of, values_of

if TYPE_CHECKING:  # a node that only says who it is needs no torch
    from torch import Tensor

    from fedspecial.core.messages import Broadcast, Tensors

Numbers = dict[str, int | float]
Count = Annotated[int, Field(ge=0)]

TRAIN, EVALUATE, ASK, HELLO = "train", "evaluate", "query.ask", "query.hello"


@dataclass(frozen=True)
class Request:
    """What a site is asked, beside the arrays.

    run:      the federation's run, so that states of different runs do not meet
    payloads: content of each payload by name · base: the version of its state that the site is to start from ·
    version:  the name of the state it ends with · keep: versions that the server may still come back to
    """

    run: str
    client: int
    task: int = 0
    round: int = 0
    client_lr: float = 0.0
    stage: str = ""
    numbers: Numbers = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    payloads: dict[str, str] = field(default_factory=dict)
    base: str = ""
    version: str = ""
    keep: list[str] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    cap: int | None = None
    masked: bool = False


@validated(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class ReplyHeader:
    """What a site says beside the arrays. It is not believed before its types are looked at.

    problem: why there is no update · missing: payloads it does not hold · kept: it has a state of the version asked for
    counts:  task → right answers and samples
    """

    site: str
    client: int
    task: int
    round: int
    problem: str | None = None
    missing: list[str] = Field(default_factory=list)
    kept: bool = False
    steps: Count = 0
    samples: Count = 0
    loss: float = 0.0
    numbers: Numbers = Field(default_factory=dict)
    memory: Count = 0
    paper_memory: Count = 0
    counts: dict[str, tuple[Count, Count]] = Field(default_factory=dict)
    release: str = ""


def question(
    kind: str, node: int, plan: str, request: Request, arrays: ArrayRecord | None, payloads: Mapping[str, Tensor]
) -> Message:
    """The message of one request; `payloads` are those to be sent along."""
    content = RecordDict({"config": ConfigRecord({"plan": plan, "request": json.dumps(vars(request))})})
    if arrays:
        content["arrays"] = arrays
    if payloads:
        content["payloads"] = to_record(payloads)
    return Message(content, dst_node_id=node, message_type=kind)


def request_of(message: Message) -> tuple[str, Request]:
    """(plan, request) of a message that a site has got."""
    config = message.content["config"]
    return str(config["plan"]), Request(**json.loads(str(config["request"])))


def broadcast_of(message: Message, request: Request, held: Mapping[str, Tensor]) -> Broadcast:
    """The broadcast that a message stands for; `held`: payloads that the site has kept or that have just come."""
    from fedspecial.core.messages import Broadcast

    vectors = tensors_in(message, "arrays")
    payloads = {name: held[digest] for name, digest in request.payloads.items()}
    return Broadcast(request.task, request.round, vectors, payloads, request.numbers, request.roles)


def tensors_in(message: Message, name: str) -> Tensors:
    """The tensors of a record of that name; none where there is no such record."""
    record = message.content.get(name)
    return from_record(record) if isinstance(record, ArrayRecord) else {}


def answer(message: Message, answered: ReplyHeader, vectors: Tensors, uploads: Tensors) -> Message:
    """A site's reply; ``num-examples`` is what Flower's own strategies weigh by."""
    content = RecordDict(
        {
            "metrics": MetricRecord({"num-examples": answered.samples, "steps": answered.steps, "loss": answered.loss}),
            "config": ConfigRecord({"answer": json.dumps(vars(answered))}),
        }
    )
    if vectors:
        content["arrays"] = to_record(vectors)
    if uploads:
        content["uploads"] = to_record(uploads)
    return Message(content, reply_to=message)


def introduction_of(reply: Message) -> ReplyHeader:
    """What a site says of itself; refused where that cannot be read."""
    try:
        return _ANSWERED.validate_json(str(reply.content["config"]["answer"]))
    except (KeyError, ValidationError):
        raise Refused("its answer cannot be read") from None


def answered_of(reply: Message, request: Request) -> ReplyHeader:
    """What a site says; refused where it does not answer this request."""
    found = introduction_of(reply)
    if (found.task, found.round) != (request.task, request.round):
        raise Refused(f"it answers for task {found.task} round {found.round + 1}")
    if found.client != request.client:
        raise Refused(f"it answers as client {found.client}")
    return found


def values_of_reply(reply: Message, sent: Tensors) -> Values:
    """The vectors of a reply, views of what came; other names, shapes or types than those sent are refused."""
    record = reply.content.get("arrays")
    if not isinstance(record, ArrayRecord):
        raise Refused("it carries no vectors")
    if odd := sent.keys() ^ record.keys():
        raise Refused(f"'{min(odd)}' " + ("is missing" if min(odd) in sent else "was not sent"))
    return {name: read(name, record[name], like=tensor.detach().cpu().numpy()) for name, tensor in sent.items()}


def uploads_of(reply: Message) -> Tensors:
    """Tensors for the server's half, which are not averaged; NaN is refused."""
    record = reply.content.get("uploads")
    if not isinstance(record, ArrayRecord):
        return {}
    for name, value in values_of(record).items():
        if not is_finite(value):
            raise Refused(f"'{name}' holds NaN or infinity")
    return from_record(record)


def one_line(text: str, length: int = 500) -> str:
    """What a site wrote, fit for a log: it can neither forge a line nor fill the disk."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= length else plain[:length] + "…"


def size_of(message: Message) -> int:
    """Bytes of a message's records as serialised."""
    size = 0
    for record in message.content.values():
        if isinstance(record, ArrayRecord):
            size += sum(len(array.data) for array in record.values())
        elif isinstance(record, ConfigRecord):
            size += sum(len(str(value)) for value in record.values())
    return size


def to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """bfloat16, which NumPy does not know, would not come back as what it was; nothing of ours is bfloat16."""
    return record_of({name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()})


def from_record(record: ArrayRecord) -> Tensors:
    import torch

    return {name: torch.from_numpy(value.copy()) for name, value in values_of(record).items()}


_ANSWERED = TypeAdapter(ReplyHeader)
