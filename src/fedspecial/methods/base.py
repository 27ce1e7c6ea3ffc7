"""What a method may say: a client half and a server half, over explicit state.

FedAvg is the whole default behaviour, so the base class *is* FedAvg; another method overrides only where it
differs. A method holds frozen hyper-parameters and nothing else: what lasts is in `ServerState` and
`ClientState`, what passes is in `Broadcast` and `Update`. Steps on vectors happen in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic.dataclasses import dataclass as validated
from torch.nn.functional import cross_entropy

from fedspecial.core.messages import Broadcast, ClientState, Numbers, ServerState, Tensors
from fedspecial.core.streams import stream

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from fedspecial.core.vector import FlatModel


@dataclass(frozen=True)
class RoundInfo:
    """What the server knows of a round when it takes its step."""

    task: int
    round: int
    server_lr: float
    client_lr: float
    mean_steps: float
    adaptive: bool = False


class Pull(NamedTuple):
    """Adds (weight/2)·‖θ − center‖² over the weights to a client's objective."""

    center: Tensor
    weight: float


@dataclass
class Local:
    """One client's turn, as the method's client half sees it."""

    client: int
    model: FlatModel
    broadcast: Broadcast
    state: ClientState
    seed: int
    lr: float
    num_classes: int

    @cached_property
    def rng(self) -> np.random.Generator:
        """The method's own randomness in this turn; drawing from it disturbs nobody else's."""
        return stream(self.seed, "method", self.broadcast.task, self.broadcast.round, self.client)

    @property
    def weights(self) -> Tensor:
        return self.model.weights


@validated(frozen=True)
class Method:
    """FedAvg: θ ← θ + γ_G · mean(Δ)."""

    name: ClassVar[str] = "fedavg"
    zero: ClassVar[Mapping[str, Any] | None] = {}
    """Hyper-parameters under which the method is FedAvg bit for bit; None if there are none."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    def check(self, *, adaptive: bool) -> None:
        """Refuse (InputError) settings of the run that the method cannot work with, before it starts.

        adaptive: the clients' optimiser is not plain SGD, so a step has no fixed length.
        """

    # --- server half ------------------------------------------------------------------------------------------

    def begin_task(self, server: ServerState, task: int) -> None:
        """Before the first round of a task; θ is the model that ended the previous one."""

    def broadcast(self, server: ServerState, client: int, task: int, round: int) -> Broadcast:
        """What client m downloads in this round."""
        return Broadcast(task, round, {"theta": server.theta})

    def server_step(self, server: ServerState, mean: Tensors, info: RoundInfo) -> Numbers:
        """From the mean of the deltas to the next model; returns facts worth recording, such as λ."""
        server.theta.add_(mean["theta"], alpha=info.server_lr)
        return {}

    def end_task(self, server: ServerState, task: int) -> None:
        """After the last round of a task."""

    # --- client half ------------------------------------------------------------------------------------------

    def begin_round(self, local: Local) -> None:
        """Before a client's first step of a round."""

    def loss(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        """The local objective on one batch."""
        return cross_entropy(local.model.module(x), y)

    def pull(self, local: Local) -> Pull | None:
        """A quadratic pull on the weights, part of the local objective, applied as one fused step."""
        return None

    def after_step(self, local: Local) -> None:
        """After each optimiser step."""

    def after_epoch(self, local: Local) -> None:
        """After each pass over the client's data."""

    def end_round(self, local: Local) -> None:
        """After a client's last step, before its delta is taken."""
