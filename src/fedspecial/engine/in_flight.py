"""Work in flight: which clients are at work, with which version of the model, and when they are done.

`SimulatedWork` decides this with the simulated clock. A client's training is executed when the server uses its update,
with the message that it was given when it started. Its result is the same as at any other moment, work that is lost
costs nothing, and a checkpoint need only contain the messages.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

from torch import Tensor

from fedspecial.core.clock_events import Loss, ServerStep, UpdateLost, UpdateOrigin
from fedspecial.core.messages import Broadcast
from fedspecial.engine.base import Engine, Reply
from fedspecial.engine.checkpoint import Checkpointer
from fedspecial.engine.clock import ClientClock, TimedRound, Work, time_round


@dataclass(frozen=True)
class Assignment:
    """The work that a client was given: the message of a version, and the learning rate."""

    client: int
    version: int
    client_lr: float
    message: Broadcast


@dataclass(frozen=True)
class Finished:
    """An update that has arrived, or work that ended without one."""

    assignment: Assignment
    loss: Loss | None = None


class WorkInFlight(Protocol):
    """Who is at work; simulated, or real sites.

    answered: updates of the current task that were used, or refused for what they contain
    buffer:   updates that have arrived and wait for the next server step
    """

    answered: int
    buffer: list[Assignment]

    @property
    def at_work(self) -> Collection[int]: ...

    def available(self, task: int, version: int, client: int) -> bool:
        """Whether a client that is not at work can be asked."""
        ...

    def start(self, task: int, assignments: Sequence[Assignment]) -> None:
        """Give clients their work."""
        ...

    def wait(self) -> list[Finished]:
        """All that happens at the next moment at which something does; nothing if nobody is at work."""
        ...

    def replies(self, engine: Engine, task: int, assignments: Sequence[Assignment]) -> Iterator[Reply]:
        """The replies that these pieces of work have led to, in this order."""
        ...

    def step_event(self, task: int, version: int, updates: list[UpdateOrigin]) -> ServerStep: ...

    def lost_event(self, task: int, version: int, assignment: Assignment, reason: Loss) -> UpdateLost: ...

    def end_task(self) -> list[Assignment]:
        """Forget all work of the task; returns what was not used."""
        ...

    def time_round(self, task: int, round: int, asked: Sequence[int]) -> TimedRound: ...

    def to_json(self, checkpointer: Checkpointer) -> dict[str, Any]:
        """What a checkpoint has to contain; `blobs` lists the files that it refers to."""
        ...


@dataclass
class SimulatedWork:
    """Work on the simulated clock. Events of the same time are ordered by kind and client.

    now: simulated seconds since the run began · last_step: when the server made its last step
    """

    clock: ClientClock
    now: float = 0.0
    last_step: float = 0.0
    answered: int = 0
    buffer: list[Assignment] = field(default_factory=list)
    _works: dict[int, tuple[Assignment, float, Work]] = field(default_factory=dict)
    _heap: list[tuple[float, bool, int]] = field(default_factory=list)
    _worked: dict[int, float] = field(default_factory=dict)
    _stored: dict[int, tuple[Tensor, str]] = field(default_factory=dict)

    @property
    def at_work(self) -> Collection[int]:
        return self._works.keys()

    def available(self, task: int, version: int, client: int) -> bool:
        return self.clock.available(task, version, client)

    def start(self, task: int, assignments: Sequence[Assignment]) -> None:
        for assignment in assignments:
            self._begin(assignment, self.now, self.clock.work(task, assignment.version, assignment.client))

    def _begin(self, assignment: Assignment, began: float, work: Work) -> None:
        self._works[assignment.client] = (assignment, began, work)
        heapq.heappush(self._heap, (began + work.seconds, work.drops_out, assignment.client))

    def wait(self) -> list[Finished]:
        if not self._heap:
            return []
        self.now = self._heap[0][0]
        found = []
        while self._heap and self._heap[0][0] == self.now:
            client = heapq.heappop(self._heap)[2]
            assignment, began, work = self._works.pop(client)
            self._worked[client] = self.now - began
            found.append(Finished(assignment, "dropped out" if work.drops_out else None))
        return found

    def replies(self, engine: Engine, task: int, assignments: Sequence[Assignment]) -> Iterator[Reply]:
        for (version, client_lr), group in groupby(assignments, lambda work: (work.version, work.client_lr)):
            messages = {work.client: work.message for work in group}
            yield from engine.train(task, version, list(messages), messages.__getitem__, client_lr)

    def step_event(self, task: int, version: int, updates: list[UpdateOrigin]) -> ServerStep:
        waited, self.last_step = self.now - self.last_step, self.now
        worked = math.fsum(self._worked.pop(update.client, 0.0) for update in updates)
        return ServerStep(task, version, self.now, waited, worked, len(self._works), updates)

    def lost_event(self, task: int, version: int, assignment: Assignment, reason: Loss) -> UpdateLost:
        worked = self._worked.pop(assignment.client, 0.0)
        return UpdateLost(task, version, assignment.client, assignment.version, reason, self.now, worked)

    def end_task(self) -> list[Assignment]:
        rest = [*self.buffer, *(assignment for assignment, _, _ in self._works.values())]
        self._worked |= {client: self.now - began for client, (_, began, _) in self._works.items()}
        self._works.clear()
        self._heap.clear()
        self.buffer.clear()
        self.answered = 0
        return sorted(rest, key=lambda assignment: assignment.client)

    def time_round(self, task: int, round: int, asked: Sequence[int]) -> TimedRound:
        timed = time_round(self.clock, task, round, asked)
        self.now += timed.seconds
        return replace(timed, end=self.now)

    def to_json(self, checkpointer: Checkpointer) -> dict[str, Any]:
        stored: dict[int, tuple[Tensor, str]] = {}

        def put(tensor: Tensor) -> str:
            known = self._stored.get(id(tensor)) or (tensor, checkpointer.put_once(tensor))
            stored[id(tensor)] = known
            return known[1]

        def pack(assignment: Assignment) -> dict[str, Any]:
            message = assignment.message
            tensors = {
                part: {name: put(tensor) for name, tensor in getattr(message, part).items()}
                for part in ("vectors", "payloads")
            }
            about = {"round": message.round, "numbers": message.numbers, "roles": message.roles, **tensors}
            work = {"client": assignment.client, "version": assignment.version, "client_lr": assignment.client_lr}
            return {**work, "worked": self._worked.get(assignment.client), "message": about}

        content = {
            "now": self.now,
            "last_step": self.last_step,
            "answered": self.answered,
            "buffer": [pack(assignment) for assignment in self.buffer],
            "at_work": [
                {**pack(assignment), "began": began, "seconds": work.seconds, "drops_out": work.drops_out}
                for assignment, began, work in self._works.values()
            ],
        }
        self._stored = stored
        return {**content, "blobs": sorted(blob for _, blob in stored.values())}

    def restore(self, saved: dict[str, Any], task: int, checkpointer: Checkpointer) -> None:
        """Continue at a checkpoint in this task."""
        if not saved:
            return
        self.now, self.last_step, self.answered = saved["now"], saved["last_step"], saved["answered"]
        tensors = {blob: checkpointer.tensor(blob) for blob in saved["blobs"]}

        def unpack(packed: dict[str, Any]) -> Assignment:
            about = packed["message"]
            vectors, payloads = ({k: tensors[v] for k, v in about[part].items()} for part in ("vectors", "payloads"))
            message = Broadcast(task, about["round"], vectors, payloads, about["numbers"], about["roles"])
            if packed["worked"] is not None:
                self._worked[packed["client"]] = packed["worked"]
            return Assignment(packed["client"], packed["version"], packed["client_lr"], message)

        self.buffer = [unpack(packed) for packed in saved["buffer"]]
        for packed in saved["at_work"]:
            self._begin(unpack(packed), packed["began"], Work(packed["seconds"], packed["drops_out"]))
