"""SPECIAL: FedAvg with a server-side proximal anchor (Algorithm 1).

    θ̄_i^{t+1} = θ_i^t + γ_G · Δ_i^t                       (line 17)
    θ_i^{t+1} = (θ̄_i^{t+1} + λ·θ_{i−1}) / (1 + λ)          (line 18, Eq. server-update)

θ: `server.theta` · Δ_i^t: `mean["theta"]` · γ_G: `info.server_lr` · λ: `lam` · θ_{i−1}: `server.anchor`

Clients train as in FedAvg and nothing more is sent. The first task has no previous model and so no anchor.

With one local step, one round is one SGD step on f_i(θ) + (μ/2)‖θ − θ_{i−1}‖² with λ = μ·γ_G·γ_L·(local steps). With
more, it is such a step with gradients taken along the clients' paths instead of at θ. Give `mu` instead of `lam` and
the pull keeps its meaning when learning rates, epochs or the amount of data change. `lam=auto` takes μ from the
curvature of the earlier tasks instead (`special_secant.py`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedspecial.core.messages import ServerState, Tensors
from fedspecial.errors import InputError
from fedspecial.methods import special_secant
from fedspecial.methods.base import Method, RoundInfo, ServerContext, StepReport

Strength = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Special(Method):
    """Pull the global model towards the model that ended the previous task, at the server.

    θ ← (θ + γ_G·mean_m(Δ_m) + λ·θ_{i−1}) / (1 + λ)

    Args:
        lam: Strength λ of the pull, ≥ 0; FedAvg at 0. The default is 0.1 if neither `lam` nor `mu` is given.
            "auto": from the curvature of the earlier tasks, nothing to choose.
        mu: The same pull as the weight of (μ/2)·‖θ − θ_{i−1}‖² in the objective, ≥ 0; λ = μ·γ_G·γ_L·(local steps).
            Give either `lam` or `mu`. It needs plain SGD on the clients and at the server.
        anchor_first_task: Use the initial model as the anchor of the first task, which otherwise has none.

    Example:
        ``fedspecial.run("digits-shift", method=Special(lam=0.25))``

    Reference:
        Algorithm 1 of the SPECIAL paper.
    """

    name: ClassVar[str] = "special"
    needs_only_sum: ClassVar[bool] = True
    fedavg_when: ClassVar = {"lam": 0.0}

    lam: Annotated[
        Strength | Literal["auto"] | None,
        Field(description="strength of the pull to the anchor; 0 is FedAvg; auto: measured; 0.1 if mu is not given"),
    ] = None
    mu: Annotated[
        Strength | None, Field(description="the same as a weight in the objective; give lam or mu, not both")
    ] = None
    anchor_first_task: Annotated[bool, Field(description="use the initial model as the anchor of the first task")] = (
        False
    )

    def __post_init__(self) -> None:
        if self.lam is not None and self.mu is not None:
            lam = self.lam if isinstance(self.lam, str) else f"{self.lam:g}"
            raise ValueError(f"lam={lam} and mu={self.mu:g} are both given; λ follows from μ, so give one")
        if self.lam is None and self.mu is None:
            object.__setattr__(self, "lam", 0.1)

    def check_settings(self, *, adaptive: bool) -> None:
        if self.mu is not None and adaptive:
            raise InputError(
                f"mu={self.mu:g}: λ = μ·γ_G·γ_L·steps holds for plain SGD at clients and server, not with another "
                "optimizer; give lam instead"
            )

    def begin_task(self, server: ServerState, context: ServerContext) -> None:
        if context.task > 1 or self.anchor_first_task:
            server.anchor = server.theta.clone()  # line 3: θ_{i−1}
        if self.lam == "auto":
            special_secant.begin_task(server)

    def server_step(self, server: ServerState, mean: Tensors, info: RoundInfo) -> StepReport:
        before = server.theta.clone() if self.lam == "auto" else server.theta
        server.theta.add_(mean["theta"], alpha=info.server_lr)  # line 17
        report = StepReport()
        if server.anchor is not None:
            lam, mu = self.strengths(server, info)
            if lam > 0:
                server.theta.lerp_(server.anchor, lam / (1 + lam))  # line 18
            report = StepReport(lam, mu)
        if self.lam == "auto":
            special_secant.observe(server, mean["theta"], before, info)
        return report

    def strengths(self, server: ServerState, info: RoundInfo) -> tuple[float, float | None]:
        """(λ, μ) of this round; μ is not defined with another optimizer than SGD or when no client took a step."""
        path = info.server_lr * info.client_lr * info.mean_steps
        if self.mu is not None:
            return self.mu * path, self.mu
        assert self.lam is not None
        lam = special_secant.strength(server, info) if isinstance(self.lam, str) else self.lam * info.scale
        return lam, None if info.adaptive or path == 0 else lam / path
