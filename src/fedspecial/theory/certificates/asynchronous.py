"""The certificate of asynchronous server steps: weighted, stale and lost updates do not weaken the cap on the drift.

A server step takes a finite set A of deltas, possibly empty, with weights w_j >= 0 and sum_j w_j <= 1, and computes

    theta' = (theta + gamma_G sum_{j in A} w_j Delta_j + lam a) / (1 + lam)

**Proposition.** Let r = ‖theta - a‖ and r' = ‖theta' - a‖. For every choice of A, of the weights and of the models at
which the Delta_j were computed,

    r' <= (r + gamma_G sum_j w_j ‖Delta_j‖) / (1 + lam) <= (r + gamma_G max_j ‖Delta_j‖) / (1 + lam)             (1)

and, if the task begins at its anchor (r_0 = 0) and p is the largest gamma_G max_j ‖Delta_j‖ / lam of its steps,

    r_t <= p   for all t, with gamma_G and lam that may differ from step to step.                                  (2)

*Proof.* theta' - a = (theta - a + gamma_G sum_j w_j Delta_j) / (1 + lam), since (1 + lam) a = a + lam a. The triangle
inequality gives the first part of (1). Its second part holds because nonnegative weights with a sum of at most 1 make
sum_j w_j ‖Delta_j‖ at most the largest norm; for empty A both are 0. For (2), let r_t <= p. Then
r_{t+1} <= (p + lam p) / (1 + lam) = p, since gamma_G max_j ‖Delta_j‖ <= lam p. Where the model is held, r_{t+1} = r_t.
The proof does not use where a delta was computed, when it arrived, in which order, or which ones were lost. QED.

Both ways to normalise fulfil the condition: s_j / |A| because every s_j <= 1, and s_j / sum_i s_i because it sums to 1.
With steps scaled by b = buffer/N, p does not change, because gamma_G and lam are both multiplied by b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedspecial.theory.bounds.drift import drift_step
from fedspecial.theory.certificates.round import RTOL, Violation

Events = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class AsynchronousCertificate:
    """What the updates of a task's server steps say about the bounds.

    updates, lost: number of updates that were used and that were lost
    weighted_bound: the recursion (1) with the weighted norms, at the end of the task
    """

    updates: int
    lost: int
    max_staleness: int
    mean_staleness: float
    max_weight_sum: float
    weighted_bound: float
    violated: tuple[Violation, ...] = ()

    def summary(self) -> dict[str, Any]:
        """Plain JSON; the violations are among those of the task."""
        return {name: value for name, value in vars(self).items() if name != "violated"}


def certify_steps(rounds: Events, steps: Events, lost: int) -> AsynchronousCertificate | None:
    """Check the updates of a task's steps against the rounds; None where no step says where its updates came from.

    rounds: the events ``round`` of the task · steps: its events ``server_step``
    """
    updates = {step["round"]: step["updates"] for step in steps}
    ages = [update["staleness"] for step in updates.values() for update in step]
    if not ages:
        return None
    found: list[Violation] = []
    radius = largest_sum = 0.0
    for event in rounds:
        used = updates.get(event["round"], [])
        if event["held"]:
            continue
        weights = [update["weight"] for update in used]
        pushed = sum(update["weight"] * update["norm"] for update in used)
        radius = drift_step(radius, event["server_lr"], _step_norm(event, pushed), event["lam"] or 0.0)
        largest_sum = max(largest_sum, sum(weights))
        slack = 2.0**-23 * (event.get("theta_norm") or 0.0)
        for name, lhs, rhs in (
            ("0 <= weight", -min(weights, default=0.0), 0.0),
            ("sum of weights <= 1", sum(weights), 1.0),
            ("mean delta <= weighted norms", event["delta_norm"], pushed),
            ("drift <= weighted recursion", event["drift"] or 0.0, radius),
        ):
            if lhs > rhs * (1 + RTOL) + slack * (1 + len(updates)):
                found.append(Violation(name, "bug", lhs, rhs))
    mean = sum(ages) / len(ages)
    return AsynchronousCertificate(len(ages), lost, max(ages), mean, largest_sum, radius, tuple(found))


def _step_norm(event: Mapping[str, Any], pushed: float) -> float:
    """What the server multiplied by gamma_G; a server optimizer makes something else of the mean delta."""
    return pushed if event.get("step_norm") is None else float(event["step_norm"])
