"""Local worker processes (`workers=N`), without a dependency: `multiprocessing` with spawn, and shared memory.

The vectors of a broadcast are written to shared memory once and read there by all workers; a worker writes its deltas
to a segment that the driver owns. Everything else is small and goes through a pipe, pickled: driver and workers are
processes of one run on one machine.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from fedspecial.engine.pools.jobs import BuildRunner, ClientWorker, Job, JobResult, TrainJob
from fedspecial.engine.pools.pool import Done, Failed, Lost, Message, Ready, RetryingPool, failure
from fedspecial.engine.pools.segments import Segment, receive_descriptor, send_segments
from fedspecial.engine.pools.shared_tensors import AttachedTensors, Place, SharedTensors, copy_from, copy_to, space_for
from fedspecial.errors import InputError

_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class _Request:
    """A job as it goes to a worker, followed by the descriptors of its segments.

    segments: number and size of each
    output:   the number of the segment for its deltas
    """

    job: Job
    outputs: int
    segments: tuple[tuple[int, int], ...]
    output: int | None


@dataclass(frozen=True)
class _DoneByProcess:
    """The result without its deltas, and where the deltas are in the segment."""

    result: JobResult
    deltas: list[Place]


@dataclass
class _Process:
    """The driver's side of one worker process. `position`: the job it runs, None while it waits for one."""

    process: BaseProcess
    connection: Connection
    shared: SharedTensors
    output: Segment | None = None
    position: int | None = None
    ready: bool = False

    def send(self, job: Job, outputs: int) -> None:
        shared, segments = self.shared.share_job(job)
        output = self._output_for(job)
        if output is not None:
            segments.append(output)
        sizes = tuple((segment.number, segment.size) for segment in segments)
        request = _Request(shared, outputs, sizes, None if output is None else output.number)
        with suppress(OSError):  # a dead worker is noticed when its reply is read
            self.connection.send_bytes(pickle.dumps(request))
            send_segments(self.connection, segments, self.process.pid or 0)

    def receive(self) -> Message:
        try:
            message: Message | _DoneByProcess = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.process.join(_STOP_SECONDS)
            return Lost(_ending(self.process.exitcode))
        if not isinstance(message, _DoneByProcess):
            return message
        if message.result.update is not None:
            assert self.output is not None
            message.result.update.deltas = copy_from(self.output, message.deltas)
        return Done(message.result)

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
            self.output.close()

    def _output_for(self, job: Job) -> Segment | None:
        if not isinstance(job, TrainJob):
            return None
        size = space_for(job.message.vectors.values())
        if self.output is None or self.output.size < size:
            if self.output is not None:
                self.output.close()
            self.output = Segment.create(size)
        return self.output


@dataclass
class ProcessPool(RetryingPool[_Process]):
    """A fixed number of worker processes."""

    build: BuildRunner
    threads: int = 1
    _pickled: bytes = b""
    _shared: SharedTensors = field(default_factory=SharedTensors)

    def __post_init__(self) -> None:
        self.kind = "worker process"
        main = getattr(sys.modules["__main__"], "__file__", None)
        if main is not None and not Path(main).exists():  # such as "<stdin>": a new process imports the main program
            raise InputError(
                f"workers={self.workers}: worker processes cannot import the main program ({main}); save it as a file "
                "and run that, or use workers=1"
            )
        try:
            self._pickled = pickle.dumps(self.build)
        except Exception as error:
            raise InputError(
                f"workers={self.workers}: an object of this run cannot be sent to worker processes ({error}); define "
                "its class or function at the top level of a module, or use workers=1"
            ) from None

    def close(self) -> None:
        super().close()
        self._shared.close()

    def _start(self) -> _Process:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._pickled, self.threads), daemon=True)
        process.start()
        theirs.close()
        return _Process(process, ours, self._shared)

    def _with_messages(self) -> list[_Process]:
        ready = wait([worker.connection for worker in self._running if worker.position is not None or not worker.ready])
        return [worker for worker in self._running if worker.connection in ready]

    def _release_unused(self) -> None:
        self._shared.release_unused()

    def _start_error(self, reason: str) -> InputError:
        return InputError(
            f"workers={self.workers}: worker processes end while they start ({reason}); in a script, put the call "
            'under `if __name__ == "__main__":`'
        )


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
        connection.send_bytes(pickle.dumps(failure(error)))
        return
    with suppress(EOFError, OSError):
        connection.send_bytes(pickle.dumps(Ready()))
        while data := connection.recv_bytes():
            request: _Request = pickle.loads(data)
            for number, size in request.segments:
                tensors.receive(number, size, receive_descriptor(connection))
            connection.send_bytes(pickle.dumps(_answer(worker, request, tensors)))
            tensors.close_unused()


def _answer(worker: ClientWorker, request: _Request, tensors: AttachedTensors) -> _DoneByProcess | Failed | Lost:
    try:
        result = worker.run(tensors.attach_job(request.job), request.outputs)
    except Exception as error:
        return failure(error)
    deltas: list[Place] = []
    if result.update is not None and request.output is not None:
        deltas = copy_to(tensors.segment(request.output), result.update.deltas)
        result = replace(result, update=replace(result.update, deltas={}))
    return _DoneByProcess(result, deltas)
