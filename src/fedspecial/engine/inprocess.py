"""The default engine: one process, one model reused in place, clients one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedspecial.core.messages import Broadcast, ClientState, Tensors, Update, broadcast_size, update_size
from fedspecial.core.streams import follow, stream, torch_state_kept
from fedspecial.core.vector import FlatModel
from fedspecial.engine.federation import Federation
from fedspecial.engine.local import LocalPlan, train
from fedspecial.engine.payloads import Payloads
from fedspecial.engine.states import ClientStates
from fedspecial.methods.base import Local, Method


@dataclass(frozen=True)
class Reply:
    """A client's answer: an update, or the reason why there is none; and what it cost.

    sent: the vectors it was to change
    held: bytes of everything the client had in memory beside its data, by name
    """

    client: int
    update: Update | None
    problem: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    sent: Tensors = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)


class Engine(Protocol):
    """Trains these clients on this broadcast and gives the replies as they come.

    A reply's tensors are valid until the next reply is asked for: add them up, do not keep them.
    """

    def train(
        self, clients: Sequence[int], broadcast: Callable[[int], Broadcast], client_lr: float
    ) -> Iterator[Reply]: ...


@dataclass
class InProcess:
    """Memory is one model, one delta and one client's batch, whatever the number of clients."""

    federation: Federation
    method: Method
    model: FlatModel
    plan: LocalPlan
    seed: int
    states: ClientStates
    payloads: Payloads
    keep_batch_norm: bool = False

    def train(self, clients: Sequence[int], broadcast: Callable[[int], Broadcast], client_lr: float) -> Iterator[Reply]:
        self.model.check_views()
        delta = torch.empty_like(self.model.vector)
        head = broadcast(clients[0])
        # All at once: a generator costs several times as much to make when its code has left the processor's cache.
        orders = [stream(self.seed, "batches", head.task, head.round, client) for client in clients]
        with torch_state_kept():
            for client, order in zip(clients, orders, strict=True):
                yield self._turn(client, broadcast(client), client_lr, delta, order)

    def _turn(
        self, client: int, message: Broadcast, client_lr: float, delta: Tensor, order: np.random.Generator
    ) -> Reply:
        rows = self.federation.rows(message.task, client)
        bytes_down = broadcast_size(message, held=self.payloads.deliver(client, message))
        if len(rows) == 0:
            return Reply(client, None, "it holds no samples of this task", 0, bytes_down)
        state = self.states.load(client)
        self._download(message, state)
        local = Local(
            client,
            self.model,
            message,
            state,
            self.seed,
            client_lr,
            self.federation.num_classes(message.task),
        )
        follow(self.seed, "torch", message.task, message.round, client)
        update = train(
            self.method,
            local,
            self.federation.domain(message.task).train,
            rows,
            self.plan,
            self.federation.benchmark,
            order,
        )
        if update.steps == 0:
            return Reply(client, None, f"its {len(rows)} samples make no batch", 0, bytes_down)
        update.deltas = self._deltas(message, delta)
        if self.keep_batch_norm:
            state.tensors["batch_norm"] = self.model.buffers.clone()
        self.states.save(client, state)
        held = self._held(message, update, state)
        return Reply(client, update, None, update_size(update), bytes_down, message.vectors, held)

    def _download(self, message: Broadcast, state: ClientState) -> None:
        self.model.load(message.theta)
        buffers = state.tensors.get("batch_norm") if self.keep_batch_norm else message.vectors.get("buffers")
        if buffers is not None:
            self.model.buffers.copy_(buffers)
        elif self.keep_batch_norm:
            self.model.reset_buffers()

    def _deltas(self, message: Broadcast, delta: Tensor) -> dict[str, Tensor]:
        """θ_m − θ, and the same for statistics that travel beside it."""
        size = len(message.theta)
        deltas = {"theta": torch.sub(self.model.vector[:size], message.theta, out=delta[:size])}
        if "buffers" in message.vectors:
            deltas["buffers"] = torch.sub(self.model.buffers, message.vectors["buffers"], out=delta[size:])
        return deltas

    def _held(self, message: Broadcast, update: Update, state: ClientState) -> dict[str, int]:
        held = {"model": _nbytes(self.model.vector)}
        held |= {f"download/{name}": _nbytes(tensor) for name, tensor in message.vectors.items()}
        held |= {f"delta/{name}": _nbytes(tensor) for name, tensor in update.deltas.items()}
        held |= {f"payload/{name}": _nbytes(tensor) for name, tensor in message.payloads.items()}
        held |= {f"state/{name}": _nbytes(tensor) for name, tensor in state.tensors.items()}
        if self.plan.adaptive or self.plan.momentum:
            held["optimizer"] = (2 if self.plan.adaptive else 1) * _nbytes(self.model.weights)
        return held


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
