"""SPECIAL-C: the same anchor as in SPECIAL, but the clients apply the pull instead of the server.

    min_θ  f_{i,m}(θ) + λ·‖θ − θ_{i−1}‖²        from the second task on; the server step is FedAvg's

λ: `lam` · θ_{i−1}: the payload "anchor", downloaded once per task · γ_L: `context.lr`

The paper prints the pull in several ways that are not the same algorithm; `prox` names them:

    step_scaled    after each step  θ ← (x + 2γ_Lλ·a)/(1 + 2γ_Lλ): proximal gradient on the objective above (default)
    step_literal   after each step  θ ← (x + 2λ·a)/(1 + 2λ), as printed, without γ_L
    epoch_literal  the printed prox once after each local epoch
    penalty        the gradient 2λ(θ − a) added to each step

Where `local_steps` or a fraction of an epoch ends the round within an epoch, `epoch_literal` pulls at that end too. The
printed algorithm has a prox after every pass of its inner loop, so no client sends a model that was not pulled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedspecial.core.messages import Broadcast, ServerState
from fedspecial.methods.base import ClientContext, Method, ProximalTerm, ServerContext

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SpecialC(Method):
    """Pull each client towards the model that ended the previous task.

    min_θ f_{i,m}(θ) + λ·‖θ − θ_{i−1}‖²

    Args:
        lam: Strength λ of the pull, ≥ 0; FedAvg at 0.
        prox: Which of the printed variants to use: "step_scaled", "step_literal", "epoch_literal" or "penalty".
        halve_lambda: Use λ/2, so that an equal λ means an equal pull in SPECIAL and SPECIAL-C.

    Example:
        ``fedspecial.run("digits-shift", method=SpecialC(lam=0.2))``

    Reference:
        The client-side variant in the SPECIAL paper.
    """

    name: ClassVar[str] = "special-c"
    needs_only_sum: ClassVar[bool] = True
    fedavg_when: ClassVar = {"lam": 0.0}

    lam: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="strength of the pull to the anchor; 0 is FedAvg")
    ] = 0.2
    prox: Annotated[
        Literal["step_scaled", "step_literal", "epoch_literal", "penalty"],
        Field(description="how the pull is applied: which of the printed variants"),
    ] = "step_scaled"
    halve_lambda: Annotated[
        bool, Field(description="use half of lam, so that an equal lam means an equal pull in SPECIAL and SPECIAL-C")
    ] = False

    def begin_task(self, server: ServerState, context: ServerContext) -> None:
        if context.task > 1:
            server.anchor = server.theta.clone()

    def broadcast(self, server: ServerState, client: int, task: int, round: int) -> Broadcast:
        message = super().broadcast(server, client, task, round)
        if self.lam > 0 and server.anchor is not None:
            message.payloads["anchor"] = server.anchor
        return message

    def proximal_term(self, context: ClientContext) -> ProximalTerm | None:
        if self.prox != "penalty" or "anchor" not in context.broadcast.payloads:
            return None
        return ProximalTerm(self._anchor(context), 2 * self._lam)

    def after_step(self, context: ClientContext) -> None:
        if self.prox == "step_scaled":
            self._blend(context, 2 * context.lr * self._lam)
        elif self.prox == "step_literal":
            self._blend(context, 2 * self._lam)

    def after_epoch(self, context: ClientContext) -> None:
        if self.prox == "epoch_literal":
            self._blend(context, 2 * self._lam)

    @property
    def _lam(self) -> float:
        return self.lam / 2 if self.halve_lambda else self.lam

    def _anchor(self, context: ClientContext) -> Tensor:
        return context.broadcast.payloads["anchor"][: len(context.weights)]

    def _blend(self, context: ClientContext, weight: float) -> None:
        """θ ← (θ + weight·a)/(1 + weight) on the weights; BatchNorm statistics are not proximal variables."""
        if "anchor" in context.broadcast.payloads:
            context.weights.lerp_(self._anchor(context), weight / (1 + weight))
