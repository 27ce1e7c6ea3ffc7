"""SPECIAL with one λ from the spread of the updates: the Laplace approximation of special-plus without its metric.

    θ ← (θ̄ + λ_t·a)/(1 + λ_t),      λ_t = c·γ_G·γ_L·steps · (dᵀ F d)/(dᵀ d),      d = θ̄ − a over the weights

F: the diagonal curvature from the spread of the clients' updates (`fedspecial/methods/special_plus_curvature.py`),
mean over the rounds of a task, summed over earlier tasks · the quotient is the curvature in the direction in which the
model moves. Without evidence λ = 0.1.

Certificate: ‖θ − a‖ ≤ max_t γ_G‖Δ_t‖/λ_t, since λ_t is one number in every round (Proposition D). It needs single
updates.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from fedspecial import Method
from fedspecial.methods import special_plus_curvature as curvature
from fedspecial.methods.base import StepReport

WITHOUT_EVIDENCE = 0.1


@dataclass(frozen=True)
class LaplaceScalar(Method):
    c: float = 1.0

    def begin_task(self, server, context):
        if context.task > 1:
            server.anchor = server.theta.clone()
            curvature.finish_task(server)

    def receive(self, server, update):
        curvature.add(server, update.deltas["theta"])

    def server_step(self, server, mean, info):
        weights = info.context.model.layout.num_weights
        curvature.learn_curvature(server, info)
        server.theta.add_(mean["theta"], alpha=info.server_lr)
        if server.anchor is None:
            return StepReport()
        d = (server.theta - server.anchor)[:weights].double()
        known = server.per_weight.get(curvature.CURVATURE)
        lam = WITHOUT_EVIDENCE
        if known is not None and float(d @ d) > 0:
            path = info.server_lr * info.client_lr * info.mean_steps
            lam = self.c * path * float((d.square() @ known.double()) / (d @ d))
        server.theta.lerp_(server.anchor, lam / (1 + lam))
        return StepReport(lam)
