"""SPECIAL with λ from the curvature between rounds, measured with two fixed groups of clients.

    θ ← (θ̄ + λ_t·a)/(1 + λ_t),      λ_t = scale·γ_G·γ_L·steps·Σ_{earlier tasks} κ
    κ = Σ_t (y_B·z_A + y_A·z_B) / Σ_t (s·z_A + s·z_B),  older rounds counting 0.8 times the next ones

Groups A and B: clients with even and odd numbers · y_G = g_G(t) − g_G(t−1), where −g_G·γ_L·steps is the mean update of
group G · s = θ_t − θ_{t−1} · z_G: the part of s that group G caused. y_B and z_A come from different clients, so their
noise is independent, and what remains is curvature. Without evidence λ = 0.1.

Certificate: ‖θ − a‖ ≤ max_t γ_G‖Δ_t‖/λ_t, since λ_t is one number in every round (Proposition D). It needs the mean
update of two groups, so it could work with secure aggregation in each group, but not with the sum over all clients.
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from fedspecial import Method
from fedspecial.methods.base import StepReport

FORGET, WITHOUT_EVIDENCE = 0.8, 0.1


@dataclass(frozen=True)
class TwoGroupSecant(Method):
    scale: float = 1.0

    def begin_task(self, server, context):
        numbers = server.numbers
        if context.task > 1:
            server.anchor = server.theta.clone()
            if numbers.get("below", 0) > 0:
                numbers["kappa"] = numbers.get("kappa", 0.0) + max(0.0, numbers["above"] / numbers["below"])
        numbers["above"] = numbers["below"] = 0.0
        for name in list(server.tensors):
            if name.startswith("secant/"):
                del server.tensors[name]

    def receive(self, server, update):
        group = "even" if update.client % 2 == 0 else "odd"
        delta, name = update.deltas["theta"], f"secant/sum/{group}"
        server.tensors[name] = server.tensors.get(name, 0) + delta.double()
        server.numbers[name] = server.numbers.get(name, 0) + 1

    def server_step(self, server, mean, info):
        self._measure(server, info)
        before = server.theta.clone()
        server.theta.add_(mean["theta"], alpha=info.server_lr)
        lam = None
        if server.anchor is not None:
            kappa = server.numbers.get("kappa")
            path = info.server_lr * info.client_lr * info.mean_steps
            lam = WITHOUT_EVIDENCE if kappa is None else self.scale * path * kappa
            server.theta.lerp_(server.anchor, lam / (1 + lam))
        server.tensors["secant/step"] = server.theta - before
        return StepReport(lam)

    def _measure(self, server, info):
        """Compare the mean update of each group with the one before, and remember it."""
        tensors, numbers, weights = server.tensors, server.numbers, info.context.model.layout.num_weights
        path, total = info.client_lr * info.mean_steps, 0
        counts = {group: numbers.pop(f"secant/sum/{group}", 0) for group in ("even", "odd")}
        total = sum(counts.values())
        step = tensors.get("secant/step")
        numbers["above"] *= FORGET
        numbers["below"] *= FORGET
        new = {}
        for group, count in counts.items():
            if count:
                delta = (tensors.pop(f"secant/sum/{group}") / count).float()[:weights]
                new[f"secant/gradient/{group}"] = -delta / path
                new[f"secant/cause/{group}"] = delta * (info.server_lr * count / total)
        for group, other in (("even", "odd"), ("odd", "even")):
            gradient, cause = f"secant/gradient/{group}", f"secant/cause/{other}"
            if gradient in new and gradient in tensors and cause in tensors:
                numbers["above"] += float((new[gradient] - tensors[gradient]) @ tensors[cause])
                numbers["below"] += float(step[:weights] @ tensors[cause])
        for group in counts:
            tensors.pop(f"secant/gradient/{group}", None)
            tensors.pop(f"secant/cause/{group}", None)
        tensors.update(new)
