"""FedProx (Li et al., 2020): clients stay close to the model that they downloaded in this round.

    min_θ  f_m(θ) + (μ/2)·‖θ − θ_i^t‖²

μ: `mu_prox` · θ_i^t: the downloaded model. The server is FedAvg's.

The proximal term uses the model of the current round, so it limits client drift but does not protect earlier tasks
(SPECIAL-C uses the model of the previous *task*). The norm is squared, as in the paper's objective.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedspecial.methods.base import ClientContext, Method, ProximalTerm


@dataclass(frozen=True)
class FedProx(Method):
    """Keep each client close to the model that it downloaded in this round.

    min_θ f_m(θ) + (μ/2)·‖θ − θ_i^t‖²

    Args:
        mu_prox: Weight μ of the proximal term, ≥ 0; FedAvg at 0.

    Example:
        ``fedspecial.run("digits-shift", method=FedProx(mu_prox=0.1))``

    Reference:
        Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
    """

    name: ClassVar[str] = "fedprox"
    needs_only_sum: ClassVar[bool] = True
    fedavg_when: ClassVar = {"mu_prox": 0.0}

    mu_prox: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="weight of the proximal term; 0 is FedAvg")
    ] = 0.01

    def proximal_term(self, context: ClientContext) -> ProximalTerm | None:
        if self.mu_prox == 0:
            return None
        return ProximalTerm(context.broadcast.theta[: len(context.weights)], self.mu_prox)
