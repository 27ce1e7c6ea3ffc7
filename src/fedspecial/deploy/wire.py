"""Our messages on Flower's wire.

Down: ``arrays`` (the vectors, whole), ``payloads`` (those the site lacks), ``config`` (plan and request as JSON).
Up:   ``arrays`` (the same vectors, whole, as the site left them, so that Flower's clipping and robust strategies mean
what they say; the server subtracts), ``uploads``, ``metrics``, ``config`` (the answer as JSON).
Before memory is taken for an array, its header is held against what was sent or against the limit of sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedspecial.core.messages import Broadcast, Numbers, Tensors
from fedspecial.deploy.arrays import Refused, record_of, values_like, values_of

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


@dataclass(frozen=True)
class Answered:
    """What a site says beside the arrays. `problem`: why there is no update; `missing`: payloads it does not hold."""

    site: str
    client: int
    task: int
    round: int
    problem: str | None = None
    missing: list[str] = field(default_factory=list)
    steps: int = 0
    samples: int = 0
    loss: float = 0.0
    numbers: Numbers = field(default_factory=dict)
    memory: int = 0
    paper_memory: int = 0
    counts: dict[str, list[int]] = field(default_factory=dict)
    release: str = ""


def question(kind: str, node: int, plan: str, request: Request, vectors: Tensors, payloads: Tensors) -> Message:
    """The message of one request; `payloads` are those to be sent along."""
    content = RecordDict({"config": ConfigRecord({"plan": plan, "request": json.dumps(asdict(request))})})
    if vectors:
        content["arrays"] = to_record(vectors)
    if payloads:
        content["payloads"] = to_record(payloads)
    return Message(content, dst_node_id=node, message_type=kind)


def request_of(message: Message) -> tuple[str, Request]:
    """(plan, request) of a message that a site has got."""
    config = message.content["config"]
    return str(config["plan"]), Request(**json.loads(str(config["request"])))


def broadcast_of(message: Message, request: Request, held: Mapping[str, Tensor]) -> Broadcast:
    """The broadcast that a message stands for; `held`: payloads that the site has kept or that have just come."""
    records = message.content.array_records
    vectors = from_record(records["arrays"]) if "arrays" in records else {}
    payloads = {name: held[digest] for name, digest in request.payloads.items()}
    return Broadcast(request.task, request.round, vectors, payloads, request.numbers, request.roles)


def answer(message: Message, answered: Answered, vectors: Tensors, uploads: Tensors) -> Message:
    """A site's reply; ``num-examples`` is what Flower's own strategies weigh by."""
    content = RecordDict(
        {
            "metrics": MetricRecord({"num-examples": answered.samples, "steps": answered.steps, "loss": answered.loss}),
            "config": ConfigRecord({"answer": json.dumps(asdict(answered), allow_nan=True)}),
        }
    )
    if vectors:
        content["arrays"] = to_record(vectors)
    if uploads:
        content["uploads"] = to_record(uploads)
    return Message(content, reply_to=message)


def answered_of(reply: Message, request: Request) -> Answered:
    """What a site says; refused where it does not answer this request."""
    try:
        found = Answered(**json.loads(str(reply.content["config"]["answer"])))
    except (KeyError, TypeError, ValueError):
        raise Refused("its answer cannot be read") from None
    if (found.task, found.round) != (request.task, request.round):
        raise Refused(f"it answers for task {found.task} round {found.round + 1}")
    if found.client != request.client:
        raise Refused(f"it answers as client {found.client}")
    return found


def vectors_of(reply: Message, sent: Tensors) -> Tensors:
    """The vectors of a reply; other names, shapes or types than those sent, and NaN, are refused."""
    records = reply.content.array_records
    if "arrays" not in records:
        raise Refused("it carries no vectors")
    like = {name: tensor.detach().cpu().numpy() for name, tensor in sent.items()}
    return {name: torch.from_numpy(value.copy()) for name, value in values_like(records["arrays"], like).items()}


def uploads_of(reply: Message) -> Tensors:
    """Tensors for the server's half, which are not averaged."""
    records = reply.content.array_records
    return from_record(records["uploads"]) if "uploads" in records else {}


def size_of(message: Message) -> int:
    """Bytes of a message's records as serialised."""
    arrays = sum(len(array.data) for record in message.content.array_records.values() for array in record.values())
    text = sum(len(str(value)) for record in message.content.config_records.values() for value in record.values())
    return arrays + text


def to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """bfloat16, which NumPy does not know, would not come back as what it was; nothing of ours is bfloat16."""
    return record_of({name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()})


def from_record(record: ArrayRecord) -> Tensors:
    return {name: torch.from_numpy(value.copy()) for name, value in values_of(record).items()}
