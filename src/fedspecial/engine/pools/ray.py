"""Ray actors as workers (`engine=ray`), on this machine or on a cluster: pip install "fedspecial[ray]".

A large vector of a broadcast is put into Ray's object store once and read there by all actors; each node fetches it
once. The objects in the store cannot be written to, so actors and driver copy what they use.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.events import EngineNotice, Event
from fedspecial.engine.pools.jobs import BuildRunner, ClientWorker, Job
from fedspecial.engine.pools.pool import Done, Failed, Lost, Message, Ready, RetryingPool, failure
from fedspecial.engine.pools.ray_cluster import RayCluster
from fedspecial.engine.pools.shared_tensors import INLINE_BYTES, map_messages, memory_key
from fedspecial.errors import ClientError, InputError

_CHECK_SECONDS = 15.0
"""How often the driver checks, while it waits, that the cluster still has nodes for its actors."""


@dataclass(frozen=True)
class ActorResources:
    """What every actor reserves of its node, and the threads of torch in it."""

    cpus: float = 1.0
    gpus: float = 0.0
    threads: int = 1


@dataclass(frozen=True)
class _Stored:
    """Stands for a tensor of a job: the position of its array among the arguments of the call."""

    argument: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _ReadyOn(Ready):
    cpu_type: str


class StoredTensors:
    """The driver's side. A tensor that was not written to since it was stored is not stored again."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._known: dict[Hashable, tuple[Tensor, int, Any]] = {}
        self._used: set[Hashable] = set()

    def store_job(self, job: Job) -> tuple[Job, list[Any]]:
        """The job with large tensors replaced by positions, and the references to pass as arguments."""
        positions: dict[Any, int] = {}

        def stored(tensor: Tensor) -> Any:
            if tensor.nbytes < INLINE_BYTES or tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16
                return tensor.detach().cpu().clone()
            position = positions.setdefault(self._reference(tensor), len(positions))
            return _Stored(position, tuple(tensor.shape))

        return map_messages(job, stored), list(positions)

    def release_unused(self) -> None:
        """Forget tensors that were not used since the last call; Ray then frees them."""
        for key in self._known.keys() - self._used:
            del self._known[key]
        self._used.clear()

    def _reference(self, tensor: Tensor) -> Any:
        key = memory_key(tensor)
        self._used.add(key)
        known = self._known.get(key)
        if known is None or known[1] != tensor._version:
            reference = self._ray.put(tensor.detach().cpu().numpy())
            # The tensor is kept, so its memory cannot be given to another one in the meantime.
            known = self._known[key] = (tensor, tensor._version, reference)
        return known[2]


class ActorProcess:
    """What runs in a Ray actor."""

    def extend_path(self, folders: list[str]) -> None:
        """Import from the driver's folders too, as worker processes do; on other machines they may not exist."""
        sys.path.extend(folder for folder in folders if folder not in sys.path)

    def start(self, build: BuildRunner, resources: ActorResources) -> Message:
        # Ray sets the number of threads to the number of reserved CPUs; sums depend on it.
        torch.set_num_threads(resources.threads)
        if 0 < resources.gpus < 1 and torch.cuda.is_available():  # Ray counts parts of GPUs, but does not enforce them
            torch.cuda.set_per_process_memory_fraction(resources.gpus)
        try:
            self._worker = ClientWorker(build())
        except Exception as error:
            return failure(error)
        return _ReadyOn(_cpu_type())

    def run(self, job: Job, outputs: int, *arrays: np.ndarray) -> Message:
        tensors = [torch.from_numpy(np.array(array)) for array in arrays]

        def loaded(tensor: Any) -> Tensor:
            return tensors[tensor.argument].view(tensor.shape) if isinstance(tensor, _Stored) else tensor

        try:
            result = self._worker.run(map_messages(job, loaded), outputs)
        except Exception as error:
            return failure(error)
        if result.update is not None:
            deltas: Any = {name: delta.detach().cpu().numpy() for name, delta in result.update.deltas.items()}
            result = replace(result, update=replace(result.update, deltas=deltas))
        return Done(result)


@dataclass
class _Actor:
    """The driver's side of one actor. `reply`: a reference to its next message, None while it has nothing to do."""

    ray: Any
    handle: Any
    reply: Any
    stored: StoredTensors
    cpu_types: set[str]
    position: int | None = None
    ready: bool = False

    def send(self, job: Job, outputs: int) -> None:
        job, references = self.stored.store_job(job)
        self.reply = self.handle.run.remote(job, outputs, *references)

    def receive(self) -> Message:
        errors = self.ray.exceptions
        reply, self.reply = self.reply, None
        try:
            message: Message = self.ray.get(reply)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if self.ready:
                return failure(cause)
            return Failed(_cannot_be_sent(cause))
        except errors.RayError:
            return Lost("its process or its node has ended")
        if isinstance(message, _ReadyOn):
            self.cpu_types.add(message.cpu_type)
        if isinstance(message, Done) and message.result.update is not None:
            update = message.result.update
            update.deltas = {name: torch.from_numpy(np.array(delta)) for name, delta in update.deltas.items()}
        return message

    def stop(self) -> None:
        self.ray.kill(self.handle)


@dataclass
class RayPool(RetryingPool[_Actor]):
    """Ray actors, at most `workers` and not more than the cluster has resources for.

    It takes over the connection to the cluster, and closes it.
    """

    build: BuildRunner
    cluster: RayCluster
    resources: ActorResources = ActorResources()
    _cpu_types: set[str] = field(default_factory=set, init=False)
    _room: int = field(default=0, init=False)
    _noticed: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.kind = "Ray actor"
        self._ray = self.cluster.ray
        self._stored = StoredTensors(self._ray)
        self._remote = self._ray.remote(ActorProcess).options(
            num_cpus=self.resources.cpus, num_gpus=self.resources.gpus, max_restarts=0, max_task_retries=0
        )
        try:
            self._room = self._count_room()
            if self._room == 0:
                raise InputError(
                    f"cpus_per_client={self.resources.cpus:g}, gpus_per_client={self.resources.gpus:g}: no node of the "
                    f"Ray cluster has as many (it has {self.cluster.describe_resources()})"
                )
            self._build = self._send_build()
        except BaseException:
            self.cluster.close()
            raise
        self.workers = min(self.workers, self._room)

    def events(self) -> list[Event]:
        if len(self._cpu_types) > 1:
            types = ", ".join(sorted(self._cpu_types))
            self._notice(f"the Ray nodes have different CPU types ({types}): another run may differ in the last bits")
        return super().events()

    def close(self) -> None:
        super().close()
        self.cluster.close()

    def _capacity(self) -> int:
        return min(self.workers, self._room)

    def _start(self) -> _Actor:
        if self.cluster.warning:
            self._notice(self.cluster.warning)
        handle = self._remote.remote()
        handle.extend_path.remote(sys.path)
        reply = handle.start.remote(self._build, self.resources)
        return _Actor(self._ray, handle, reply, self._stored, self._cpu_types)

    def _with_messages(self) -> list[_Actor]:
        pending = {actor.reply: actor for actor in self._running if actor.reply is not None}
        while True:
            ready, _ = self._ray.wait(list(pending), num_returns=1, timeout=_CHECK_SECONDS)
            if ready:
                return [pending[reply] for reply in ready]
            if self._count_room() == 0:
                raise ClientError("engine=ray: no node of the Ray cluster is left; the run can be resumed")

    def _release_unused(self) -> None:
        self._stored.release_unused()

    def _start_error(self, reason: str) -> InputError:
        return InputError(f"engine=ray: Ray actors end while they start ({reason})")

    def _remove(self, worker: _Actor, reason: str) -> None:
        super()._remove(worker, reason)
        self._room = max(1, self._count_room())

    def _count_room(self) -> int:
        return self.cluster.room_for(self.resources.cpus, self.resources.gpus)

    def _send_build(self) -> Any:
        try:
            return self._ray.put(self.build)
        except Exception as error:
            raise _cannot_be_sent(error) from None

    def _notice(self, text: str) -> None:
        if text not in self._noticed:
            self._noticed.add(text)
            self._events.append(EngineNotice(text))


def _cannot_be_sent(error: Exception) -> InputError:
    text = str(error).strip().splitlines()
    return InputError(
        f"engine=ray: an object of this run cannot be sent to Ray actors ({type(error).__name__}: "
        f"{text[0] if text else ''}); define its class or function in a module that every node can import"
    )


def _cpu_type() -> str:
    """The CPU's name. Libraries choose instructions by it, and rounding can depend on them."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
