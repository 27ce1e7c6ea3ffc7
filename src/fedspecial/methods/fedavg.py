"""FedAvg (McMahan et al., 2017), continued from task to task.

    θ_i^{t+1} = θ_i^t + γ_G · (1/N) Σ_m Δ_m ,     Δ_m = θ_{i,m}^{t,E} − θ_i^t

θ: `server.theta` · γ_G: `info.server_lr` · mean of Δ_m: `mean["theta"]`

It has no memory of earlier tasks: every other method is measured against what it forgets.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedspecial.methods.base import Method


@dataclass(frozen=True)
class FedAvg(Method):
    name: ClassVar[str] = "fedavg"
