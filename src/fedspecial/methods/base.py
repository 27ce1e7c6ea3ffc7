"""The interface of a method: a client half and a server half, with explicit state.

The base class is FedAvg; another method overrides only the hooks in which it differs. A method object has frozen
hyper-parameters and no other attributes: state that lasts is in `ServerState` and `ClientState`, messages are
`Broadcast` and `Update`. Steps on vectors happen in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic.dataclasses import dataclass as validated

from fedspecial.core.anchored import AnchoredPart
from fedspecial.core.messages import Broadcast, ServerState, Tensors, Update
from fedspecial.core.streams import sample_clients
from fedspecial.errors import InputError
from fedspecial.methods.context import (
    ClientContext,
    Exchange,
    LocalData,
    ProblemSpec,
    Query,
    QueryResult,
    ServerContext,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "AnchoredPart",
    "ClientContext",
    "Exchange",
    "LocalData",
    "Method",
    "ProblemSpec",
    "ProximalTerm",
    "Query",
    "QueryResult",
    "RoundInfo",
    "ServerContext",
    "StepReport",
]


@dataclass(frozen=True)
class RoundInfo:
    """What the server knows about a round when it takes its step.

    task, round: which round it is; tasks count from 1, rounds of a task from 0
    server_lr, client_lr: the learning rates γ_G and γ_L of this round
    mean_steps: mean number of local steps of the clients
    adaptive: the optimizer of the clients or of the server is not plain SGD
    scale: the share of a round that an asynchronous step stands for; it is in `server_lr` already, and a method that
           pulls the model at the server scales the pull by it too
    context: model and networks, for a method that trains or tests something in its step
    batch_size: samples per local training batch
    """

    task: int
    round: int
    server_lr: float
    client_lr: float
    mean_steps: float
    adaptive: bool = False
    context: ServerContext | None = None
    scale: float = 1.0
    batch_size: int = 1


@dataclass(frozen=True)
class StepReport:
    """What a method reports about a server step; it goes into the event of the round.

    lam:     λ of the pull towards `server.anchor`; with it and the anchor, a task gets a certificate. The smallest one
             where each weight has its own
    mu:      the same pull as a weight in the objective, where it is defined
    anchored: where each weight has its own strength, those with more than a little of it
    metrics: further numbers to record
    """

    lam: float | None = None
    mu: float | None = None
    anchored: AnchoredPart | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class ProximalTerm(NamedTuple):
    """A penalty (weight/2)·‖θ − center‖² on the weights, added to a client's objective."""

    center: Tensor
    weight: float


@validated(frozen=True)
class Method:
    """The base class of all methods. It is FedAvg, θ ← θ + γ_G·mean_m(Δ_m); a method overrides the hooks that differ.

    Fields of a subclass are its hyper-parameters. The hooks from `begin_task` to `eval_broadcast` run at the server,
    those from `answer_query` to `predict` at a client. Vectors change in place.
    """

    name: ClassVar[str] = "fedavg"
    fedavg_when: ClassVar[Mapping[str, Any] | None] = {}
    """Hyper-parameters under which the method is FedAvg bit for bit; None if there are none."""
    kinds: ClassVar[tuple[str, ...]] = ("image", "table", "text", "other")
    """The kinds of data that the method supports."""
    needs_class_scores: ClassVar[bool] = False
    """Whether the method uses labels or scores of classes itself, so that it works only with classification."""
    personal: ClassVar[bool] = False
    """Whether clients predict differently; metrics are then means over all of them."""
    all_domains: ClassVar[bool] = False
    """Whether clients train on their data of all domains in every task: a reference, without any forgetting."""
    simulation_only: ClassVar[bool] = False
    """Whether the method is a reference for simulations, which a real federation refuses."""
    needs_only_sum: ClassVar[bool] = False
    """Whether the server half sees nothing of the clients but the sum of their updates: no single update, no upload, no
    query. Such a method can be combined with differential privacy and with secure aggregation."""
    memory_excluded: ClassVar[frozenset[str]] = frozenset()
    """What the paper's table of client memory does not count, by the names in `engine/clients/memory.py`;
    "payload/x" includes "payload/x/y"."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        if "needs_only_sum" not in cls.__dict__:
            cls.needs_only_sum = False  # not inherited: a hook that a subclass adds may see more

    def check_settings(self, *, adaptive: bool) -> None:
        """Raise InputError for settings of the run that the method does not support, before it starts.

        adaptive: the optimizer of the clients or of the server is not plain SGD
        """

    def check_problem(self, problem: ProblemSpec) -> None:
        """Raise InputError for data that the method does not support, before the run starts."""
        if problem.kind not in self.kinds:
            raise InputError(
                f"method={self.name}: it supports {' and '.join(self.kinds)} data, not {problem.kind} data"
            )

    def networks(self, problem: ProblemSpec) -> dict[str, nn.Module]:
        """Networks beside the classifier. Their initial weights are in `server.tensors` under the same names."""
        return {}

    # --- server half ------------------------------------------------------------------------------------------

    def begin_task(self, server: ServerState, context: ServerContext) -> Exchange | None:
        """Before the first round of a task; θ is the model that ended the previous one.

        Prepare the server's state, train something at the server, or query clients, which have the new task's data:
        write the hook as a generator that yields a `Query` and receives {client: QueryResult}.
        """

    def sample_clients(
        self, server: ServerState, seed: int, task: int, round: int, clients: int, count: int
    ) -> list[int]:
        """The clients of a round: N of M, uniformly, the same for all methods."""
        return sample_clients(seed, task, round, clients, count)

    def broadcast(self, server: ServerState, client: int, task: int, round: int) -> Broadcast:
        """The message that `client` downloads in this round."""
        return Broadcast(task, round, {"theta": server.theta})

    def receive(self, server: ServerState, update: Update) -> None:
        """See one client's update before it is averaged. Copy its tensors to keep them."""

    def server_step(self, server: ServerState, mean: Tensors, info: RoundInfo) -> StepReport:
        """Compute the next model from the mean of the deltas, in place."""
        server.theta.add_(mean["theta"], alpha=info.server_lr)
        return StepReport()

    def end_task(self, server: ServerState, context: ServerContext) -> Exchange | None:
        """After the last round of a task, while clients still have its data; may query them like `begin_task`."""

    def eval_broadcast(self, server: ServerState, client: int, task: int) -> Broadcast:
        """The message that `client` predicts with."""
        return Broadcast(task, 0, {"theta": server.theta})

    # --- client half ------------------------------------------------------------------------------------------

    def answer_query(self, context: ClientContext, query: str) -> QueryResult:
        """Answer a query of `begin_task` or `end_task`, by its name."""
        raise NotImplementedError(f"method '{self.name}' has no query '{query}'")

    def replay(self, context: ClientContext) -> tuple[Tensor, Tensor] | None:
        """Stored samples (in the format of the client's data) and labels to train on together with the task's own."""
        return None

    def begin_round(self, context: ClientContext) -> None:
        """Before a client's first step of a round."""

    def loss(self, context: ClientContext, x: Tensor, y: Tensor) -> Tensor:
        """The local objective on one batch."""
        return context.objective.loss(context.model.module, (context.model.converted(x), y))

    def proximal_term(self, context: ClientContext) -> ProximalTerm | None:
        """A quadratic term on the weights, part of the local objective, applied as one fused step."""
        return None

    def after_step(self, context: ClientContext) -> None:
        """After each step of the client's optimizer."""

    def after_epoch(self, context: ClientContext) -> None:
        """After each pass over the client's data, also after a last one that the end of the round cut short."""

    def end_round(self, context: ClientContext) -> None:
        """After a client's last step, before its delta is taken."""

    def predict(self, context: ClientContext, x: Tensor) -> Tensor:
        """The model's outputs, such as scores of classes, in evaluation mode, with the message of `eval_broadcast`
        loaded."""
        return context.model(x)
