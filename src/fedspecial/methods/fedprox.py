"""FedProx (Li et al., 2020): clients stay near the model they were handed this round.

    min_θ  f_m(θ) + (μ/2)·‖θ − θ_i^t‖²

μ: `mu_prox` · θ_i^t: the downloaded model. The server is FedAvg's.

The pull is towards the current round's model, so it limits client drift and remembers nothing of earlier tasks
(a pull towards the previous *task's* model is SPECIAL-C). The norm is squared, as in the paper's objective.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedspecial.methods.base import ClientContext, Method, ProximalTerm


@dataclass(frozen=True)
class FedProx(Method):
    name: ClassVar[str] = "fedprox"
    fedavg_when: ClassVar = {"mu_prox": 0.0}

    mu_prox: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01

    def proximal_term(self, context: ClientContext) -> ProximalTerm | None:
        if self.mu_prox == 0:
            return None
        return ProximalTerm(context.broadcast.theta[: len(context.weights)], self.mu_prox)
