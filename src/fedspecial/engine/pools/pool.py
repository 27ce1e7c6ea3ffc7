"""What all worker pools have in common: the order of jobs, lost workers, and jobs that are run again elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch

from fedspecial.core.events import Event, WorkerLost
from fedspecial.engine.pools.jobs import Job, JobResult, describe
from fedspecial.errors import ClientError, InputError

MAX_ATTEMPTS = 3
"""A job whose worker is lost this many times ends the run."""


@dataclass(frozen=True)
class Ready:
    """The worker has read its data and built its model."""


@dataclass(frozen=True)
class Done:
    result: JobResult


@dataclass(frozen=True)
class Failed:
    """An exception that running the job elsewhere would not change."""

    error: Exception


@dataclass(frozen=True)
class Lost:
    """The worker has ended, or is out of memory; its job can be run elsewhere."""

    reason: str


Message = Ready | Done | Failed | Lost


class Worker(Protocol):
    """The driver's side of one worker. `position`: the job it runs, None while it waits for one."""

    position: int | None
    ready: bool

    def send(self, job: Job, outputs: int) -> None: ...

    def receive(self) -> Message: ...

    def stop(self) -> None:
        """End the worker, whatever it is doing."""
        ...


W = TypeVar("W", bound=Worker)


@dataclass
class RetryingPool(ABC, Generic[W]):
    """At most `workers` workers, started at first use and replaced when they are lost.

    kind: what a worker is, for messages
    """

    workers: int
    kind: str = field(default="worker", init=False)
    _running: list[W] = field(default_factory=list, init=False)
    _events: list[Event] = field(default_factory=list, init=False)
    _starts_failed: int = field(default=0, init=False)

    def run(self, jobs: Sequence[Job], outputs: int) -> Iterator[tuple[int, JobResult]]:
        waiting, lost, left = deque(range(len(jobs))), [0] * len(jobs), len(jobs)
        try:
            while left:
                while len(self._running) < min(self._capacity(), left):
                    self._running.append(self._start())
                for worker in self._running:
                    if worker.ready and worker.position is None and waiting:
                        worker.position = waiting.popleft()
                        worker.send(jobs[worker.position], outputs)
                for worker in self._with_messages():
                    position, message = worker.position, worker.receive()
                    if isinstance(message, Ready):
                        worker.ready, self._starts_failed = True, 0
                    elif isinstance(message, Done) and position is not None:
                        worker.position, left = None, left - 1
                        yield position, message.result
                    elif isinstance(message, Failed):
                        raise message.error
                    elif isinstance(message, Lost):
                        self._remove(worker, message.reason)
                        if position is not None:
                            lost[position] += 1
                            self._note_lost(jobs[position], lost[position], message.reason)
                            waiting.appendleft(position)
            self._release_unused()
        finally:
            if left:
                self._stop_busy()

    def events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        for worker in self._running:
            worker.stop()
        self._running = []

    def _capacity(self) -> int:
        """How many workers can run now."""
        return self.workers

    @abstractmethod
    def _start(self) -> W: ...

    @abstractmethod
    def _with_messages(self) -> list[W]:
        """Wait until a worker has sent a message or has ended, and return all such workers."""

    @abstractmethod
    def _release_unused(self) -> None:
        """Free the copies of tensors that the last jobs did not use."""

    @abstractmethod
    def _start_error(self, reason: str) -> InputError:
        """The error for workers that are lost while they start."""

    def _remove(self, worker: W, reason: str) -> None:
        worker.stop()
        self._running.remove(worker)
        if not worker.ready:
            self._starts_failed += 1
            if self._starts_failed == MAX_ATTEMPTS:
                raise self._start_error(reason)

    def _note_lost(self, job: Job, times: int, reason: str) -> None:
        self._events.append(WorkerLost(describe(job), reason, times))
        if times == MAX_ATTEMPTS:
            raise ClientError(
                f"{describe(job)}: its {self.kind} was lost {MAX_ATTEMPTS} times ({reason}); the run can be resumed"
            )

    def _stop_busy(self) -> None:
        """Jobs that are left will not be used: their workers are ended, since nobody reads their replies."""
        for worker in [worker for worker in self._running if worker.position is not None or not worker.ready]:
            worker.stop()
            self._running.remove(worker)


def failure(error: Exception) -> Failed | Lost:
    """What a worker reports when a job raises an exception. The driver can always unpickle it."""
    if _out_of_memory(error):
        return Lost("out of memory")
    if isinstance(error, (InputError, ClientError)):
        return Failed(type(error)(str(error)))
    return Failed(ClientError(f"{type(error).__name__}: {' '.join(str(error).split())}"))


def _out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            return True
        error = error.__cause__
    return False
