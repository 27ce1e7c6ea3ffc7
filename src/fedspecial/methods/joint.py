"""Joint training: FedAvg on the data of all domains at once, the upper bound of what a sequence of tasks can reach.

    θ ← θ + γ_G · (1/N) Σ_m Δ_m ,     every client holds its samples of all domains 1 … K in every task

The engine gives the clients this data (`all_domains`); everything else is FedAvg, with the same rounds, clients and
rates. No domain is left behind, so there is no forgetting to measure: BWT, worst drop and forgetting are null.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedspecial.methods.base import Method


@dataclass(frozen=True)
class Joint(Method):
    """Train on the data of all domains in every task: the upper bound.

    θ ← θ + γ_G · mean_m(Δ_m), with each client's data of all domains

    It is a reference for comparisons in simulation. A real federation does not have the data of later domains.

    Example:
        ``fedspecial.run("digits-shift", method=Joint())``
    """

    name: ClassVar[str] = "joint"
    needs_only_sum: ClassVar[bool] = True
    fedavg_when: ClassVar = None
    all_domains: ClassVar[bool] = True
    simulation_only: ClassVar[bool] = True
