"""Local training: each client trains a model of its own and nothing is averaged. It shows what a federation gains.

    θ_m ← θ_m + Δ_m     in the rounds in which client m is sampled

All clients begin with the same initial model, which they download once. Clients, rounds and rates are those of the
other methods, so a client trains as much as it would in the federation. The accuracy is the mean over all clients,
those included that were never sampled. The global model stays the initial one.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from fedspecial.core.messages import THETA, Broadcast, ServerState, Tensors
from fedspecial.methods.base import ClientContext, Method, RoundInfo, StepReport

_OWN = "own"


@dataclass(frozen=True)
class Local(Method):
    """Each client trains alone: what every client reaches without a federation.

    θ_m ← θ_m + Δ_m

    The accuracy is the mean over the clients.

    Example:
        ``fedspecial.run("digits-shift", method=Local())``
    """

    name: ClassVar[str] = "local"
    fedavg_when: ClassVar = None
    personal: ClassVar[bool] = True
    simulation_only: ClassVar[bool] = True

    def broadcast(self, server: ServerState, client: int, task: int, round: int) -> Broadcast:
        # A payload is sent once and has no delta.
        return Broadcast(task, round, {}, {THETA: server.theta})

    def server_step(self, server: ServerState, mean: Tensors, info: RoundInfo) -> StepReport:
        return StepReport()

    def eval_broadcast(self, server: ServerState, client: int, task: int) -> Broadcast:
        return self.broadcast(server, client, task, 0)

    def begin_round(self, context: ClientContext) -> None:
        self._load(context)

    def end_round(self, context: ClientContext) -> None:
        context.state.models[_OWN] = context.model.vector.clone()

    def predict(self, context: ClientContext, x: Tensor) -> Tensor:
        if context.batch == 1:
            self._load(context)
        return super().predict(context, x)

    def _load(self, context: ClientContext) -> None:
        if _OWN in context.state.models:
            context.model.load(context.state.models[_OWN])
