"""The weight of an update by its staleness τ: the number of versions since its client downloaded the model.

    constant    s(τ) = 1
    polynomial  s(τ) = (1 + τ)^−a                                   (FedBuff, FedAsync)
    hinge       s(τ) = 1 for τ ≤ b,  1 / (1 + a·(τ − b)) after that  (FedAsync, Xie et al., 2019)

Each is in [0, 1], and 1 for a fresh update, so that the weights s(τ_j)/|A| of a step sum to at most 1.
"""

from __future__ import annotations

from typing import Literal

Staleness = Literal["constant", "polynomial", "hinge"]


def staleness_weight(tau: float, rule: Staleness = "polynomial", exponent: float = 0.5, hinge: float = 4.0) -> float:
    """s(τ) by this rule, with a = `exponent` and b = `hinge`."""
    if rule == "constant":
        return 1.0
    if rule == "hinge":
        return 1 / (1 + exponent * max(0.0, tau - hinge))
    return float((1 + tau) ** -exponent)
