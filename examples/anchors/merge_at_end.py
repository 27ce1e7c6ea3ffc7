"""FedAvg within a task; at its end, the model is merged once with that of the previous task.

    θ_i ← (θ + λ·θ_{i−1})/(1 + λ)

    rule=mean     λ = i − 1: the mean of the models of all tasks
    rule=keep     λ = 1/keep − 1: a fixed share of the new model
    rule=fisher   λ = dᵀF_old d / dᵀF_new d,  d = θ − θ_{i−1}: the best point between the two for quadratic losses with
                  these curvatures (BECAME, ICML 2025), F from the spread of the updates as in special-plus

Certificate: ‖θ_i − θ_{i−1}‖ = ‖d‖/(1 + λ) exactly; within the task nothing is pulled, and nothing is bounded. `mean`
and `keep` need only the mean of the updates, `fisher` needs single ones.
"""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from fedspecial import Method
from fedspecial.methods import special_plus_curvature as curvature
from fedspecial.methods.base import StepReport


@dataclass(frozen=True)
class MergeAtEnd(Method):
    rule: Literal["mean", "keep", "fisher"] = "fisher"
    keep: float = 0.6

    def begin_task(self, server, context):
        server.models["previous"] = server.theta.clone()

    def receive(self, server, update):
        if self.rule == "fisher":
            curvature.add(server, update.deltas["theta"])

    def server_step(self, server, mean, info):
        curvature.learn_curvature(server, info)
        server.theta.add_(mean["theta"], alpha=info.server_lr)
        return StepReport()

    def end_task(self, server, context):
        lam = self._strength(server, context)
        if context.task > 1:
            server.theta.lerp_(server.models["previous"], lam / (1 + lam))
        curvature.finish_task(server)

    def _strength(self, server, context):
        if self.rule == "mean":
            return context.task - 1
        if self.rule == "keep":
            return 1 / self.keep - 1
        old, new = (server.per_weight.get(name) for name in (curvature.CURVATURE, curvature.CURRENT))
        if old is None or new is None:
            return context.task - 1  # without evidence, all tasks count the same
        d = (server.theta - server.models["previous"])[: len(old)].double().square()
        return float(d @ old.double()) / float(d @ new.double() / server.numbers[curvature.ROUNDS])
