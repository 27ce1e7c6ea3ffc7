"""Which replies of a round can be used: late, duplicate, failed, malformed and NaN replies are refused."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedspecial.flower.arrays import RefusedReply, reply_arrays
from fedspecial.flower.governance.round_record import Refusal, SiteName
from fedspecial.flower.logs import one_line


@dataclass
class CheckedReplies:
    """usable: to be aggregated, ordered by site · failed: error replies · refusals: every reply that is not usable."""

    usable: list[Message] = field(default_factory=list)
    failed: list[Message] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


def check_replies(
    replies: Iterable[Message],
    requests: Sequence[Message],
    sent: Mapping[str, NDArray[Any]],
    names: Mapping[int, str],
    weight_key: str = "num-examples",
) -> CheckedReplies:
    """Separate usable replies from the others, and sort them by site so that sums do not depend on the arrival order.

    sent:  the model in the requests
    names: node id → permanent name, see `permanent_names`
    """
    checked = CheckedReplies()
    nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in requests}
    replied: set[str] = set()
    order: dict[int, tuple[bool, int, str, int]] = {}
    for reply in replies:
        request = reply.metadata.reply_to_message_id
        # The SuperLink sends the error reply of a lost node under its own id, so look up the node of the request.
        node = nodes.get(request, reply.metadata.src_node_id)
        site = site_name(reply, node, names)
        try:
            if request not in nodes:
                raise RefusedReply("it does not belong to a request of this round (late, or from another run)")
            if request in replied:
                raise RefusedReply("it is a duplicate")
            replied.add(request)
            if reply.has_error():
                checked.failed.append(reply)
                raise RefusedReply(f"the client failed: {reply.error.reason}")
            check_reply(reply, sent, weight_key)
        except RefusedReply as reason:
            checked.refusals.append(Refusal(site, str(reason)))
        else:
            checked.usable.append(reply)
            order[id(reply)] = (isinstance(site, str), site if isinstance(site, int) else 0, str(site), node)
    checked.usable.sort(key=lambda reply: order[id(reply)])
    missing = [nodes[request] for request in nodes if request not in replied]
    checked.refusals += [Refusal(names.get(node, f"node {node}"), "no reply before the deadline") for node in missing]
    return checked


def check_reply(reply: Message, sent: Mapping[str, NDArray[Any]], weight_key: str) -> None:
    """Require one ArrayRecord like the one sent and a valid weight; put its arrays in the order of `sent`."""
    records = reply.content.array_records
    if len(records) != 1:
        raise RefusedReply(f"it has {len(records)} ArrayRecords instead of one")
    name, record = next(iter(records.items()))
    reply_arrays(record, sent)
    if list(record) != list(sent):
        reply.content[name] = ArrayRecord({key: record[key] for key in sent})
    for metrics in reply.content.metric_records.values():
        weight = metrics.get(weight_key, 1)
        if not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight < 0:
            raise RefusedReply(f"{weight_key}={weight} is not a valid weight")


def site_name(reply: Message, node: int, names: Mapping[int, str]) -> SiteName:
    """The node's permanent name, else the client's own `client-id`, else the node id."""
    if node in names:
        return names[node]
    if not reply.has_error():
        client_ids = [
            *(record.get("client-id") for record in reply.content.metric_records.values()),
            *(record.get("client-id") for record in reply.content.config_records.values()),
        ]
        found = next((name for name in client_ids if isinstance(name, (int, str))), f"node {node}")
        return one_line(found, 100) if isinstance(found, str) else found
    return f"node {node}"


def permanent_names(grid: Grid) -> dict[int, str]:
    """Node id → its name, or a hash of its public key. Node ids change with every registration."""
    nodes = list(grid.get_nodes())
    registered = [node.name for node in nodes]
    names = {}
    for node in nodes:
        if node.name and registered.count(node.name) == 1:
            names[node.node_id] = node.name
        elif node.public_key:
            names[node.node_id] = f"key-{hashlib.sha256(node.public_key).hexdigest()[:16]}"
    return names
