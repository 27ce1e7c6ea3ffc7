"""Which of a round's replies may be used: late, doubled, failed, malformed and NaN ones are named and put aside."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedspecial.flower.app.arrays import Refused, values_like
from fedspecial.flower.governance.round_record import Refusal, Site


@dataclass
class Sifted:
    """good: to be aggregated, in the order of sites · failed: error replies · refused: all that was put aside."""

    good: list[Message] = field(default_factory=list)
    failed: list[Message] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


def sift(
    replies: Iterable[Message],
    asked: Sequence[Message],
    sent: Mapping[str, NDArray[Any]],
    names: Mapping[int, str],
    weight_key: str = "num-examples",
) -> Sifted:
    """Put aside what cannot be used; sort the rest by site, so that sums do not depend on the order of arrival."""
    found = Sifted()
    nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in asked}
    answered: set[str] = set()
    order: dict[int, tuple[bool, int, str, int]] = {}
    for reply in replies:
        question = reply.metadata.reply_to_message_id
        # For a lost node the SuperLink answers in its own name; the question tells whose turn it was.
        node = nodes.get(question, reply.metadata.src_node_id)
        site = site_of(reply, node, names)
        try:
            if question not in nodes:
                raise Refused("it answers no question of this round (late, or of another run)")
            if question in answered:
                raise Refused("it answers a question twice")
            answered.add(question)
            if reply.has_error():
                found.failed.append(reply)
                raise Refused(f"it failed: {reply.error.reason}")
            check(reply, sent, weight_key)
        except Refused as why:
            found.refused.append(Refusal(site, str(why)))
        else:
            found.good.append(reply)
            order[id(reply)] = (isinstance(site, str), site if isinstance(site, int) else 0, str(site), node)
    found.good.sort(key=lambda reply: order[id(reply)])
    silent = [nodes[question] for question in nodes if question not in answered]
    found.refused += [Refusal(names.get(node, f"node {node}"), "no answer in time") for node in silent]
    return found


def check(reply: Message, sent: Mapping[str, NDArray[Any]], weight_key: str) -> None:
    """One ArrayRecord like the one sent, and a weight that is a weight; arrays are put in the order sent."""
    records = reply.content.array_records
    if len(records) != 1:
        raise Refused(f"{len(records)} ArrayRecords came instead of one")
    name, record = next(iter(records.items()))
    values_like(record, sent)
    if list(record) != list(sent):
        reply.content[name] = ArrayRecord({key: record[key] for key in sent})
    for metrics in reply.content.metric_records.values():
        weight = metrics.get(weight_key, 1)
        if not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight < 0:
            raise Refused(f"{weight_key}={weight} is not a weight")


def site_of(reply: Message, node: int, names: Mapping[int, str]) -> Site:
    """The node's lasting name, or what the client calls itself, or the number it has in this registration."""
    if node in names:
        return names[node]
    if not reply.has_error():
        reported = [
            *(record.get("client-id") for record in reply.content.metric_records.values()),
            *(record.get("client-id") for record in reply.content.config_records.values()),
        ]
        return next((name for name in reported if isinstance(name, (int, str))), f"node {node}")
    return f"node {node}"


def lasting_names(grid: Grid) -> dict[int, str]:
    """Node id → its name, or the hash of its public key. Node ids themselves are drawn anew at each registration."""
    nodes = list(grid.get_nodes())
    names = [node.name for node in nodes]
    found = {}
    for node in nodes:
        if node.name and names.count(node.name) == 1:
            found[node.node_id] = node.name
        elif node.public_key:
            found[node.node_id] = f"key-{hashlib.sha256(node.public_key).hexdigest()[:16]}"
    return found
