"""SPECIAL: FedAvg with a server-side proximal anchor (Algorithm 1).

    θ̄_i^{t+1} = θ_i^t + γ_G · Δ_i^t                       (line 17)
    θ_i^{t+1} = (θ̄_i^{t+1} + λ·θ_{i−1}) / (1 + λ)          (line 18, Eq. server-update)

θ: `server.theta` · Δ_i^t: `mean["theta"]` · γ_G: `info.server_lr` · λ: `lam` · θ_{i−1}: `server.anchor`

Clients are FedAvg's and nothing more is sent. The first task has no previous model and so no anchor.

One round is one SGD step on f_i(θ) + (μ/2)‖θ − θ_{i−1}‖² with λ = μ·γ_G·γ_L·(local steps). Give `mu` instead of
`lam` and the pull keeps its meaning when rates, epochs or the amount of data change.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedspecial.core.messages import ServerState, Tensors
from fedspecial.errors import InputError
from fedspecial.methods.base import Method, RoundInfo, ServerContext, StepReport

Strength = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Special(Method):
    name: ClassVar[str] = "special"
    fedavg_when: ClassVar = {"lam": 0.0}

    lam: Strength | None = None
    mu: Strength | None = None
    anchor_first_task: bool = False

    def __post_init__(self) -> None:
        if self.lam is not None and self.mu is not None:
            raise ValueError(f"lam={self.lam:g} and mu={self.mu:g} are both given; λ follows from μ, so give one")
        if self.lam is None and self.mu is None:
            object.__setattr__(self, "lam", 0.1)

    def check_settings(self, *, adaptive: bool) -> None:
        if self.mu is not None and adaptive:
            raise InputError(
                f"mu={self.mu:g}: λ = μ·γ_G·γ_L·steps speaks of SGD steps, and an adaptive optimizer's have no such "
                "length; give lam instead"
            )

    def begin_task(self, server: ServerState, context: ServerContext) -> None:
        if context.task > 1 or self.anchor_first_task:
            server.anchor = server.theta.clone()  # line 3: θ_{i−1}

    def server_step(self, server: ServerState, mean: Tensors, info: RoundInfo) -> StepReport:
        server.theta.add_(mean["theta"], alpha=info.server_lr)  # line 17
        if server.anchor is None:
            return StepReport()
        lam, mu = self.strengths(info)
        if lam > 0:
            server.theta.lerp_(server.anchor, lam / (1 + lam))  # line 18
        return StepReport(lam, mu)

    def strengths(self, info: RoundInfo) -> tuple[float, float | None]:
        """(λ, μ) of this round; μ is not defined for adaptive clients or when nobody moved."""
        path = info.server_lr * info.client_lr * info.mean_steps
        if self.mu is not None:
            return self.mu * path, self.mu
        assert self.lam is not None
        return self.lam, None if info.adaptive or path == 0 else self.lam / path
