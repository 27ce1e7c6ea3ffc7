"""Local worker processes (`workers=N`), without a dependency: `multiprocessing` with spawn, and shared memory.

The vectors of a broadcast are written to shared memory once and read there by all workers; a worker writes its deltas
to a segment that the driver owns. Everything else is small and goes through a pipe, pickled: driver and workers are
processes of one run on one machine.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory

import torch

from fedspecial.core.events import Event, WorkerLost
from fedspecial.engine.jobs import BuildRunner, ClientWorker, Job, JobResult, TrainJob, describe
from fedspecial.engine.shared_tensors import AttachedTensors, SharedTensors, copy_from, copy_to, release
from fedspecial.errors import ClientError, InputError

MAX_ATTEMPTS = 3
"""A job whose worker is lost this many times ends the run."""
_STOP_SECONDS = 5.0

Deltas = list[tuple[str, int]]


@dataclass(frozen=True)
class _Request:
    """A job as it goes to a worker. `output`: the segment for its deltas."""

    job: Job
    outputs: int
    output: str | None


@dataclass(frozen=True)
class _Ready:
    """The worker has read its data and built its model."""


@dataclass(frozen=True)
class _Done:
    result: JobResult
    deltas: Deltas


@dataclass(frozen=True)
class _Failed:
    """An exception that running the job elsewhere would not change, or a worker out of memory (`lost`)."""

    error: Exception
    lost: bool = False


@dataclass
class _Process:
    """The driver's side of one worker process. `position`: the job it runs, None while it waits for one."""

    process: BaseProcess
    connection: Connection
    output: SharedMemory | None = None
    position: int | None = None
    ready: bool = False

    def send(self, position: int, job: Job, outputs: int, shared: SharedTensors) -> None:
        self.position = position
        request = _Request(shared.share_job(job), outputs, self._output_for(job))
        with suppress(OSError):  # a dead worker is noticed when its reply is read
            self.connection.send_bytes(pickle.dumps(request))

    def receive(self) -> _Ready | _Done | _Failed | None:
        """The worker's next message; None if the process has ended."""
        try:
            message: _Ready | _Done | _Failed = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            return None
        if isinstance(message, _Done) and message.result.update is not None:
            assert self.output is not None
            message.result.update.deltas = copy_from(self.output, message.deltas)
        return message

    def stop(self) -> None:
        """End the process: at once where it works on a job, otherwise by asking it to."""
        if self.position is None and self.ready:
            with suppress(OSError):
                self.connection.send_bytes(b"")
        else:
            self.process.kill()
        self.process.join(_STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()
        if self.output is not None:
            release(self.output)

    def _output_for(self, job: Job) -> str | None:
        if not isinstance(job, TrainJob):
            return None
        size = max(4, 4 * sum(vector.numel() for vector in job.message.vectors.values()))
        if self.output is None or self.output.size < size:
            if self.output is not None:
                release(self.output)
            self.output = SharedMemory(create=True, size=size)
        return self.output.name


@dataclass
class ProcessPool:
    """A fixed number of worker processes, started at first use and replaced when they are lost."""

    build: BuildRunner
    workers: int
    threads: int = 1
    _pickled: bytes = b""
    _running: list[_Process] = field(default_factory=list)
    _shared: SharedTensors = field(default_factory=SharedTensors)
    _events: list[Event] = field(default_factory=list)
    _starts_failed: int = 0

    def __post_init__(self) -> None:
        try:
            self._pickled = pickle.dumps(self.build)
        except Exception as error:
            raise InputError(
                f"workers={self.workers}: an object of this run cannot be sent to worker processes ({error}); define "
                "its class or function at the top level of a module, or use workers=1"
            ) from None

    def run(self, jobs: Sequence[Job], outputs: int) -> Iterator[tuple[int, JobResult]]:
        waiting, lost, left = deque(range(len(jobs))), [0] * len(jobs), len(jobs)
        try:
            while left:
                self._start_missing(min(self.workers, left))
                for worker in self._running:
                    if worker.ready and worker.position is None and waiting:
                        first = waiting.popleft()
                        worker.send(first, jobs[first], outputs, self._shared)
                for worker in self._speaking():
                    position, message = worker.position, worker.receive()
                    if isinstance(message, _Ready):
                        worker.ready, self._starts_failed = True, 0
                    elif isinstance(message, _Done) and position is not None:
                        worker.position, left = None, left - 1
                        yield position, message.result
                    elif isinstance(message, _Failed) and not message.lost:
                        raise message.error
                    else:
                        self._replace(worker, message)
                        if position is not None:
                            lost[position] += 1
                            self._note_lost(jobs[position], lost[position], worker, message)
                            waiting.appendleft(position)
            self._shared.release_unused()
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
        self._shared.close()

    def _start_missing(self, wanted: int) -> None:
        while len(self._running) < wanted:
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, self._pickled, self.threads), daemon=True)
            process.start()
            theirs.close()
            self._running.append(_Process(process, ours))

    def _speaking(self) -> list[_Process]:
        """Workers that have something to say, or have ended."""
        ready = wait([worker.connection for worker in self._running if worker.position is not None or not worker.ready])
        return [worker for worker in self._running if worker.connection in ready]

    def _replace(self, worker: _Process, message: _Failed | _Ready | _Done | None) -> None:
        worker.process.kill()
        worker.stop()
        self._running.remove(worker)
        if not worker.ready:
            self._starts_failed += 1
            if self._starts_failed == MAX_ATTEMPTS:
                raise InputError(
                    f"workers={self.workers}: worker processes end while they start (exit code "
                    f'{worker.process.exitcode}); in a script, put the call under `if __name__ == "__main__":`'
                )

    def _note_lost(self, job: Job, times: int, worker: _Process, message: object) -> None:
        reason = "out of memory" if isinstance(message, _Failed) else _ending(worker.process.exitcode)
        self._events.append(WorkerLost(describe(job), reason, times))
        if times == MAX_ATTEMPTS:
            raise ClientError(
                f"{describe(job)}: its worker process was lost {MAX_ATTEMPTS} times ({reason}); the run can be resumed"
            )

    def _stop_busy(self) -> None:
        """Jobs that are left will not be used: their workers are ended, since nobody reads their replies."""
        for worker in [worker for worker in self._running if worker.position is not None or not worker.ready]:
            worker.stop()
            self._running.remove(worker)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _serve(connection: Connection, build: bytes, threads: int) -> None:
    """The main function of a worker process. It ends when the driver closes the pipe or sends nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides when workers end
    torch.set_num_threads(threads)
    tensors = AttachedTensors()
    try:
        worker = ClientWorker(pickle.loads(build)())
    except Exception as error:
        connection.send_bytes(pickle.dumps(_Failed(_plain(error))))
        return
    with suppress(EOFError, OSError):
        connection.send_bytes(pickle.dumps(_Ready()))
        while data := connection.recv_bytes():
            connection.send_bytes(pickle.dumps(_answer(worker, pickle.loads(data), tensors)))
            tensors.close_unused()


def _answer(worker: ClientWorker, request: _Request, tensors: AttachedTensors) -> _Done | _Failed:
    try:
        result = worker.run(tensors.attach_job(request.job), request.outputs)
    except Exception as error:
        return _Failed(_plain(error), lost=_out_of_memory(error))
    deltas: Deltas = []
    if result.update is not None and request.output is not None:
        deltas = copy_to(tensors.memory(request.output), result.update.deltas)
        result = replace(result, update=replace(result.update, deltas={}))
    return _Done(result, deltas)


def _plain(error: Exception) -> Exception:
    """An exception that the driver can read: ours as they are, others as one line."""
    if isinstance(error, (InputError, ClientError)):
        return type(error)(str(error))
    return ClientError(f"{type(error).__name__}: {' '.join(str(error).split())}")


def _out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            return True
        error = error.__cause__
    return False
