"""Small federations on an in-process Grid, and faults to inject into them."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedspecial.config import preset_settings
from fedspecial.flower.app.client_app import make_client_app
from fedspecial.flower.app.server_app import serve
from fedspecial.flower.app.wire import record_to_tensors, tensors_to_record
from fedspecial.flower.governance.audit import read_lines
from fedspecial.flower.grid import Delivery, Fault, InProcessGrid, lost

SITES = ("north", "south", "west", "east")
SMALL = {
    "benchmark": "digits-shift", "domains": "paper,neon", "cap": 80, "model": "cnn", "width": 4, "rounds": 2,
    "local_epochs": 1, "clients_per_round": 3, "min_per_client": 4, "eval_every": 0, "seed": 25,
}  # fmt: skip
SIZES = {
    "mfcl": {"iterations": 5, "generator_width": 4, "latent": 8, "synthetic": 8},
    "fedcil": {"generator_width": 4, "gan_size": 16, "server_iterations": 2},
}
POLICY = {
    "retries": 1,
    "reply_seconds": 0.3,
    "wait_seconds": 5.0,
    "max_drop": 1.0,
    "max_site_drop": 1.0,
    "above_chance": False,
}
SHORT = {"domains": "paper", "rounds": 1, "clients_per_round": 4}


def settings_of(method: str) -> dict[str, Any]:
    """The settings of a small run, including the method's own."""
    return {
        **SMALL,
        "method": method,
        **preset_settings("digits-shift")["methods"].get(method, {}),
        **SIZES.get(method, {}),
    }


def policy_file(folder: Path, **rules: Any) -> str:
    """A site's policy file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.yaml").write_text(json.dumps(rules))
    return str(folder / "policy.yaml")


def grid_of(folder: Path, sites: Iterable[str] = SITES, names: Iterable[str] = (), **rules: Any) -> InProcessGrid:
    """rules: of the policy that all sites have"""
    own = {"policy": policy_file(folder, **rules)} if rules else {}
    nodes = [{"site": site, "state": str(folder / f"site-{number}"), **own} for number, site in enumerate(sites)]
    return InProcessGrid(make_client_app(), nodes, names=list(names))


def federate(
    folder: Path,
    method: str = "special",
    grid: InProcessGrid | None = None,
    listeners: tuple[Callable[[Any], None], ...] = (),
    **settings: Any,
) -> Path:
    config = {"sites": ",".join(SITES), **settings_of(method), **POLICY, **settings, "out": str(folder / "run")}
    return serve(grid or grid_of(folder), config, listeners)


def finished(run: Path) -> dict[str, Any]:
    return json.loads((run / "finished.json").read_text())


def rounds_of(run: Path) -> list[dict[str, Any]]:
    """The lines of rounds in the audit log."""
    return [line for line in read_lines(run / "audit.jsonl") if line["event"] == "round"]


def reasons_of(run: Path) -> dict[str, set[str]]:
    """Site → reasons of its refused replies, from the audit log."""
    found: dict[str, set[str]] = {}
    for line in rounds_of(run):
        for refusal in line["refusals"]:
            found.setdefault(refusal["site"], set()).add(refusal["reason"])
    return found


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file of this process can have more bytes than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# --- faults -----------------------------------------------------------------------------------------------------


def on_time(request: Message, reply: Message) -> list[Delivery]:
    return [Delivery(reply)]


def in_training(fault: Fault) -> Fault:
    """The fault, but only for training requests."""
    return lambda request, reply: (fault if request.metadata.message_type == "train" else on_time)(request, reply)


def modified(change: Callable[[Message], None]) -> Fault:
    """A reply that is modified on its way."""

    def fault(request: Message, reply: Message) -> list[Delivery]:
        change(reply)
        return [Delivery(reply)]

    return in_training(fault)


class LostOnce:
    """Each node's first reply to a training request is lost."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def __call__(self, request: Message, reply: Message) -> Iterable[Delivery]:
        node = request.metadata.dst_node_id
        if request.metadata.message_type != "train" or node in self._seen:
            return on_time(request, reply)
        self._seen.add(node)
        return lost(request, reply)


class LostBetween:
    """Training replies of all nodes are counted, and those with a number in this range are lost."""

    def __init__(self, first: int, last: int) -> None:
        self._range, self._count = range(first, last + 1), 0

    def __call__(self, request: Message, reply: Message) -> Iterable[Delivery]:
        self._count += request.metadata.message_type == "train"
        return lost(request, reply) if self._count in self._range else on_time(request, reply)


def with_vector(change: Callable[[Any], Any]) -> Callable[[Message], None]:
    def modify(reply: Message) -> None:
        reply.content["arrays"] = tensors_to_record(
            {"theta": change(record_to_tensors(reply.content["arrays"])["theta"])}
        )

    return modify


def with_header(**fields: Any) -> Callable[[Message], None]:
    """A reply whose header has other values."""

    def modify(reply: Message) -> None:
        header = json.loads(reply.content["config"]["reply"])
        reply.content["config"]["reply"] = json.dumps({**header, **fields})

    return modify
