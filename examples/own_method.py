"""A user-defined method: one class in one file. Run it with

fedspecial run digits-shift method=examples/own_method.py:Fading fade=0.5
"""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from fedspecial import Method
from fedspecial.methods.base import StepReport


@dataclass(frozen=True)
class Fading(Method):
    """SPECIAL whose pull to the anchor becomes weaker during a task: θ ← (θ̄ + λ_t·a)/(1 + λ_t), λ_t = lam·fade^t."""

    lam: float = 0.2
    fade: float = 0.8

    def begin_task(self, server, context):
        if context.task > 1:
            server.anchor = server.theta.clone()

    def server_step(self, server, mean, info):
        server.theta.add_(mean["theta"], alpha=info.server_lr)
        if server.anchor is None:
            return StepReport()
        lam = self.lam * self.fade**info.round
        server.theta.lerp_(server.anchor, lam / (1 + lam))
        return StepReport(lam=lam)
