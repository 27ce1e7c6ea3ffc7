"""What a round reports where each weight is pulled to the anchor with a strength of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AnchoredPart:
    """The weights with at least some strength of the pull, where each weight has its own; the same ones in all rounds
    of a task.

    share:      how many of all weights they are
    lam:        the smallest strength among them in this round
    drift, delta_norm: the distance to the anchor after the round, and the norm of the step before the pull, divided by
                server_lr; of these weights alone
    """

    share: float
    lam: float
    drift: float
    delta_norm: float
