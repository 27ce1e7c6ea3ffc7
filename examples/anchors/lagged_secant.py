"""SPECIAL with λ from the curvature between rounds, measured with the mean update alone.

    θ ← (θ̄ + λ_t·a)/(1 + λ_t),      λ_t = scale·γ_G·γ_L·steps·Σ_{earlier tasks} κ
    κ = Σ_t y_t·s_{t−1} / Σ_t s_t·s_{t−1},   y_t = g_t − g_{t−1},   s_t = θ_t − θ_{t−1}

−g_t·γ_L·steps is the mean update that starts from θ_t. y_t·s_t would count noise as curvature, because g_{t−1} and s_t
are made of the same updates. The step before, s_{t−1}, was made by other batches and other clients, so its noise is
independent of y_t and s_t (an instrumental variable), and only the mean of the updates is needed. Without evidence
λ = 0.1. This is the first form of `lam=auto` of SPECIAL, which has no scale, and in addition limits λ to at most 1.

Certificate: ‖θ − a‖ ≤ max_t γ_G‖Δ_t‖/λ_t, since λ_t is one number in every round (Proposition D).
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from fedspecial import Method
from fedspecial.methods.base import StepReport

WITHOUT_EVIDENCE = 0.1


@dataclass(frozen=True)
class LaggedSecant(Method):
    needs_only_sum = True
    scale: float = 1.0

    def begin_task(self, server, context):
        numbers = server.numbers
        if context.task > 1:
            server.anchor = server.theta.clone()
            if numbers.get("below", 0) > 0:
                numbers["kappa"] = numbers.get("kappa", 0.0) + max(0.0, numbers["above"] / numbers["below"])
        numbers["above"] = numbers["below"] = 0.0
        for name in ("gradient", "step", "step_before"):
            server.tensors.pop(name, None)

    def server_step(self, server, mean, info):
        tensors, numbers, weights = server.tensors, server.numbers, info.context.model.layout.num_weights
        gradient = mean["theta"][:weights] / (-info.client_lr * info.mean_steps)
        if "step_before" in tensors:
            numbers["above"] += float((gradient - tensors["gradient"]) @ tensors["step_before"])
            numbers["below"] += float(tensors["step"] @ tensors["step_before"])
        before = server.theta.clone()
        server.theta.add_(mean["theta"], alpha=info.server_lr)
        lam = None
        if server.anchor is not None:
            path = info.server_lr * info.client_lr * info.mean_steps
            lam = WITHOUT_EVIDENCE if "kappa" not in numbers else self.scale * path * numbers["kappa"]
            server.theta.lerp_(server.anchor, lam / (1 + lam))
        if "step" in tensors:
            tensors["step_before"] = tensors["step"]
        tensors["gradient"], tensors["step"] = gradient, (server.theta - before)[:weights]
        return StepReport(lam)
