"""FedAvg (McMahan et al., 2017), continued from task to task.

    θ_i^{t+1} = θ_i^t + γ_G · (1/N) Σ_m Δ_m ,     Δ_m = θ_{i,m}^{t,E} − θ_i^t

θ: `server.theta` · γ_G: `info.server_lr` · mean of Δ_m: `mean["theta"]`

It does nothing against forgetting: it is the baseline of all other methods.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedspecial.methods.base import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """Average the models of the clients.

    θ ← θ + γ_G · mean_m(Δ_m)

    It has no hyper-parameters of its own.

    Example:
        ``fedspecial.run("digits-shift", method=FedAvg())``

    Reference:
        McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
    """

    name: ClassVar[str] = "fedavg"
    needs_only_sum: ClassVar[bool] = True
