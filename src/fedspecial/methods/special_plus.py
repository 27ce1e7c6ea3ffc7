"""SPECIAL+: pull each weight as strongly as it mattered to earlier tasks, and keep each task's BatchNorm statistics.

    θ̄   = θ + γ_G · Δ
    θ_k = (θ̄_k + Λ_k·a_k) / (1 + Λ_k)                    for each weight k, from the second task on
    Λ_k = min( c · γ_G·γ_L·steps · F_k , 20 ),       F_k = Σ_{earlier tasks} mean_t B·Var_m(Δ_mk) / (γ_L²·steps)

θ: `server.theta` · Δ: `mean["theta"]` · γ_G: `info.server_lr` · γ_L: `info.client_lr` · a: `server.anchor`, the model
that ended the previous task · F: `server.per_weight["curvature"]` · Var_m: the variance over the updates of a round
(`special_plus_curvature.py`) · mean_t: over the rounds of a task · B: `info.batch_size` · steps: `info.mean_steps`

With one local step, a round is one SGD step on f_i(θ) + (c/2)·Σ_k F_k·(θ_k − a_k)². With c = 1 that is the Laplace
approximation of the sum of all tasks' losses (the paper's Eq. 1), if F were their curvature. The spread of a few
updates is a small and noisy estimate, so c is larger. Its default was chosen once, on development data, and is the same
for every benchmark (docs/science/anchor.md).

The second half is `batch_norm=bank`, a default of this method: BatchNorm statistics are not pulled; those of each task
are kept, and every sample is predicted with the mixture that fits it. Whole server steps (`server_lr=1`) are the other
default, because the pull already limits how far later tasks move the model.

Clients train as in FedAvg and upload the same numbers, in a message with two names instead of one (weights and
statistics). They download the statistics of earlier tasks, once each. The server
needs single updates, though only to add up their squares: no combination with secure aggregation or differential
privacy. Where the spread is not known (one client per round) nothing is pulled. With an adaptive optimizer at the
clients or the server, γ_L·steps does not say how far a gradient moves a weight: the strengths then keep their ratios
and get the mean 0.1.

Certificate: ‖θ_A − a_A‖ ≤ max_t γ_G‖Δ_A‖/min_A Λ over the weights A with at least a tenth of the mean curvature, and
the same with the smallest Λ over all weights (`theory/bounds/drift.py`, `anchored_drift_cap`).
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedspecial.core.messages import ServerState, Tensors, Update
from fedspecial.methods import special_plus_curvature as curvature
from fedspecial.methods.base import AnchoredPart, Method, RoundInfo, ServerContext, StepReport

STRONGEST = 20.0
"""The largest strength: such a weight keeps 1/21 of its way in every round, and is never frozen."""
ADAPTIVE_STRENGTH = 0.1
"""The mean strength with an adaptive optimizer, whose steps say nothing about the size of a curvature."""


@dataclass(frozen=True)
class SpecialPlus(Method):
    """Pull each weight towards the previous task's model as strongly as it mattered, and keep BatchNorm statistics.

    θ_k ← (θ_k + γ_G·mean_m(Δ_mk) + Λ_k·a_k) / (1 + Λ_k)

    The method has two defaults of its own for settings of the run: `batch_norm=bank` and `server_lr=1`.

    Args:
        c: Scale of the strengths Λ_k, ≥ 0. At 0 nothing is pulled; with `batch_norm=average` it is FedAvg then.

    Example:
        ``fedspecial.run("digits-shift", method="special-plus")``

    Reference:
        Not in the SPECIAL paper; docs/science/anchor.md.
    """

    name: ClassVar[str] = "special-plus"
    needs_only_sum: ClassVar[bool] = False
    fedavg_when: ClassVar = {"c": 0.0, "batch_norm": "average", "server_lr": "1/i"}

    c: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False, description="scale of the strengths; 0 pulls nothing; not meant to be tuned"),
    ] = 30.0

    def begin_task(self, server: ServerState, context: ServerContext) -> None:
        if context.task > 1 and self.c > 0:
            server.anchor = server.theta.clone()
            curvature.finish_task(server)

    def receive(self, server: ServerState, update: Update) -> None:
        if self.c > 0:
            curvature.add(server, update.deltas["theta"])

    def server_step(self, server: ServerState, mean: Tensors, info: RoundInfo) -> StepReport:
        curvature.learn_curvature(server, info)
        known = server.per_weight.get(curvature.CURVATURE)
        if server.anchor is None or known is None:
            server.theta.add_(mean["theta"], alpha=info.server_lr)
            return StepReport()
        scale = self._scale(server, info)
        drift, delta = _pulled_step(server, known, mean["theta"], scale, info.server_lr)
        numbers = server.numbers
        strengths = (min(scale * numbers[name], STRONGEST) for name in (curvature.LEAST, curvature.LEAST_ANCHORED))
        least, weakest = strengths
        part = AnchoredPart(numbers[curvature.SHARE], weakest, drift, delta)
        return StepReport(least, anchored=part, metrics={"mean_strength": scale * numbers[curvature.MEAN]})

    def _scale(self, server: ServerState, info: RoundInfo) -> float:
        """Λ/F of this round, before the limit."""
        if info.adaptive:
            return ADAPTIVE_STRENGTH * info.scale / max(server.numbers[curvature.MEAN], 1e-30)
        return self.c * info.server_lr * info.client_lr * info.mean_steps


def _pulled_step(
    server: ServerState, known: Tensor, delta: Tensor, scale: float, server_lr: float
) -> tuple[float, float]:
    """The step and the pull, in place; returns the norms of θ − a and of Δ over the anchored part.

    Block by block, so that each stays in the processor's cache. The squares of blocks are added up in float64: the
    certificate compares norms more closely than float32 adds up millions of squares.
    """
    assert server.anchor is not None
    least = server.numbers[curvature.LEAST_ANCHORED]
    length = max((block.stop - block.start for block in curvature.blocks(len(known))), default=0)
    scratch = torch.empty(3, length, dtype=known.dtype, device=known.device)
    squares: list[list[Tensor]] = [[], []]
    for block in curvature.blocks(len(known)):
        theta, anchor, step, weight = server.theta[block], server.anchor[block], delta[block], known[block]
        chosen, strength, other = scratch[:, : len(theta)]
        torch.ge(weight, least, out=chosen)
        theta.add_(step, alpha=server_lr)
        torch.mul(weight, scale, out=strength).clamp_(max=STRONGEST)
        theta.lerp_(anchor, strength.div_(torch.add(strength, 1, out=other)))
        for sums, part in zip(squares, (torch.sub(theta, anchor, out=other), step), strict=True):
            masked = torch.mul(part, chosen, out=strength)
            sums.append(torch.dot(masked, masked))
    server.theta[len(known) :].add_(delta[len(known) :], alpha=server_lr)
    drift, moved = (float(torch.stack(sums).cpu().double().sum().sqrt()) for sums in squares)
    if math.isfinite(drift + moved):
        return drift, moved
    # The squares of a run that diverges overflow in float32.
    chosen, length = (known >= least).cpu(), len(known)
    parts = (server.theta[:length].cpu().double() - server.anchor[:length].cpu(), delta[:length].cpu().double())
    drift, moved = (float(torch.linalg.vector_norm(part * chosen)) for part in parts)
    return drift, moved
