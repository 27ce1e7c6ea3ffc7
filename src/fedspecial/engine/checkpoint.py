"""Checkpoints: everything needed to continue a run bit for bit, written completely or not at all.

``checkpoint.json`` refers to blobs by their content, so what did not change (an anchor, an idle client's state) is
not written again. Its last field is its own hash: a file that was cut off or edited is refused.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedspecial.core.events import prefix_sha256
from fedspecial.core.files import BlobStore, write_atomic
from fedspecial.core.messages import Numbers, ServerState, Tensors, pack, unpack
from fedspecial.errors import InputError

_FORMAT = 2
_HISTORY = "history"
_DETECTION = ("tasks_begun", "task_began", "first_losses")
"""What detecting tasks needs of the server's state."""


@dataclass(frozen=True)
class Position:
    """The next round to run; (tasks + 1, 0) when all is done. Tasks count from 1, rounds from 0."""

    task: int = 1
    round: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint contains; tensors by the names of their blobs.

    on_device: which of the server's `tensors` are on the device of the model and not on the CPU
    work: the simulated clock and the work that is in flight, see `in_flight.py`
    """

    position: Position
    events_length: int
    events_sha256: str
    layout: str
    vector: str
    anchor: str | None
    models: dict[str, str]
    tensors: dict[str, str]
    numbers: Numbers
    clients: dict[str, str]
    payloads: dict[str, Any]
    on_device: list[str] = field(default_factory=list)
    optimizer: dict[str, str] = field(default_factory=dict)
    update_norms: dict[str, list[float]] = field(default_factory=dict)
    work: dict[str, Any] = field(default_factory=dict)
    per_weight: dict[str, str] = field(default_factory=dict)
    detection: dict[str, Any] = field(default_factory=dict)

    def blobs(self) -> set[str]:
        """The files it refers to."""
        anchor = {self.anchor} if self.anchor else set()
        named = (self.models, self.tensors, self.clients, self.optimizer, self.per_weight)
        in_flight = self.work.get("blobs", [])
        return {self.vector, *anchor, *in_flight, *(blob for blobs in named for blob in blobs.values())}


class Checkpointer:
    """Saves when it is due: at every task's end, and in between whenever `seconds` have passed.

    A replay from an older checkpoint gives the same numbers, so saving seldom costs only time after a crash.

    keep: number of earlier checkpoints to which the run may be set back, see `history`
    """

    keep = 0

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.blobs = BlobStore(folder / "blobs")
        self._seconds = seconds
        self._last = time.monotonic()
        self.seconds_spent = 0.0
        self._stored: dict[str, tuple[Tensor, int, str]] = {}

    def due(self) -> bool:
        return time.monotonic() - self._last >= self._seconds

    def put(self, name: str, tensor: Tensor) -> str:
        """Store a tensor, unless it is the last one stored under this name and was not written to since."""
        known = self._stored.get(name)
        if known is None or known[0] is not tensor or known[1] != tensor._version:
            known = (tensor, tensor._version, self.blobs.put(pack({"data": tensor})))
            self._stored[name] = known
        return known[2]

    def _put_all(self, part: str, named: Tensors) -> dict[str, str]:
        return {name: self.put(f"{part}/{name}", tensor) for name, tensor in named.items()}

    def put_once(self, tensor: Tensor) -> str:
        """Store a tensor that has no name and will not be written to."""
        return self.blobs.put(pack({"data": tensor}))

    def save(
        self,
        position: Position,
        *,
        events: tuple[int, str],
        layout: str,
        vector: Tensor,
        server: ServerState,
        clients: dict[int, str],
        payloads: dict[str, Any],
        work: dict[str, Any],
    ) -> None:
        began = time.perf_counter()
        length, sha256 = events
        checkpoint = Checkpoint(
            position,
            events_length=length,
            events_sha256=sha256,
            layout=layout,
            vector=self.put("vector", vector),
            anchor=None if server.anchor is None else self.put("anchor", server.anchor),
            models=self._put_all("models", server.models),
            tensors=self._put_all("tensors", server.tensors),
            numbers=server.numbers,
            clients={str(client): blob for client, blob in clients.items()},
            payloads=payloads,
            on_device=sorted(name for name, tensor in server.tensors.items() if tensor.device.type != "cpu"),
            optimizer=self._put_all("optimizer", server.optimizer),
            update_norms=server.update_norms,
            work=work,
            per_weight=self._put_all("per_weight", server.per_weight),
            detection={name: getattr(server, name) for name in _DETECTION},
        )
        self.blobs.sync()
        data = _sealed({"format": _FORMAT, **asdict(checkpoint)})
        earlier = self._keep_history(position, data) if self.keep else set()
        write_atomic(self.folder / "checkpoint.json", data)
        kept = checkpoint.blobs() | earlier
        self.blobs.keep(kept)
        # Of what is removed nothing may be taken for stored, and its tensors need not be kept in memory.
        self._stored = {name: known for name, known in self._stored.items() if known[2] in kept}
        self._last = time.monotonic()
        self.seconds_spent += time.perf_counter() - began

    def _keep_history(self, position: Position, data: bytes) -> set[str]:
        """Add a checkpoint to the kept ones, remove the oldest; returns the blobs that the kept ones refer to."""
        (self.folder / _HISTORY).mkdir(exist_ok=True)
        write_atomic(self.folder / _HISTORY / f"{position.task}-{position.round}.json", data)
        paths = list(history(self.folder).values())
        for path in paths[: -self.keep]:
            path.unlink()
        return {blob for path in paths[-self.keep :] for blob in _read(path).blobs()}

    def tensor(self, blob: str) -> Tensor:
        return unpack(self.blobs.get(blob))[0]["data"]

    def restore(self, checkpoint: Checkpoint, server: ServerState) -> None:
        """Put back everything in the server's state except θ, which is a part of the checkpoint's vector."""
        device = server.theta.device
        server.anchor = None if checkpoint.anchor is None else self.tensor(checkpoint.anchor).to(device)
        server.models = {name: self.tensor(blob).to(device) for name, blob in checkpoint.models.items()}
        server.tensors = {name: self.tensor(blob) for name, blob in checkpoint.tensors.items()}
        server.tensors |= {name: server.tensors[name].to(device) for name in checkpoint.on_device}
        server.numbers = dict(checkpoint.numbers)
        server.optimizer = {name: self.tensor(blob).to(device) for name, blob in checkpoint.optimizer.items()}
        server.per_weight = {name: self.tensor(blob).to(device) for name, blob in checkpoint.per_weight.items()}
        server.update_norms = {key: list(norms) for key, norms in checkpoint.update_norms.items()}
        for name, value in checkpoint.detection.items():
            setattr(server, name, value)


def history(folder: Path) -> dict[Position, Path]:
    """The kept checkpoints by position, the oldest first; unchecked."""
    found = {}
    for path in (folder / _HISTORY).glob("*-*.json"):
        task, _, round = path.stem.partition("-")
        found[Position(int(task), int(round))] = path
    return dict(sorted(found.items(), key=lambda item: (item[0].task, item[0].round)))


def kept(folder: Path) -> list[Checkpoint]:
    """The checkpoints of `history`; what they refer to is not checked."""
    return [_read(path) for path in history(folder).values()]


def load(folder: Path, file: Path = Path("checkpoint.json")) -> Checkpoint | None:
    """The last checkpoint, or None where none was finished yet. All that it refers to is checked here, at once."""
    path = folder / file
    if not path.exists():
        return None
    found = _read(path)
    blobs = BlobStore(folder / "blobs")
    for name in found.blobs():
        blobs.get(name)
    events = folder.parent / "events.jsonl"
    if found.events_length > (events.stat().st_size if events.exists() else 0):
        raise InputError(f"checkpoint: {events} is shorter than it was when {path.name} was written")
    if prefix_sha256(events, found.events_length).hexdigest() != found.events_sha256:
        raise InputError(f"checkpoint: {events} was changed after {path.name} was written")
    return found


def _read(path: Path) -> Checkpoint:
    """A checkpoint whose own hash is right; what it refers to is not checked."""
    try:
        content = json.loads(path.read_bytes())
        seal = content.pop("seal")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InputError(f"checkpoint: {path} is cut off or not a checkpoint") from None
    if json.loads(_sealed(content))["seal"] != seal:
        raise InputError(f"checkpoint: {path} was changed after it was written")
    if (written := content.pop("format", None)) != _FORMAT:
        raise InputError(
            f"checkpoint: {path} has format {written}, but this version of fedspecial reads format {_FORMAT}; "
            "start the run again in a new folder"
        )
    return Checkpoint(**{**content, "position": Position(**content["position"])})


def _sealed(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True)
    seal = hashlib.sha256(text.encode()).hexdigest()
    return (json.dumps({**content, "seal": seal}, indent=1) + "\n").encode()
