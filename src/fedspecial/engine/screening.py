"""Refusing updates that are far larger than others: `norm_limit`.

With L: `norm_limit`, δ_m: a vector of client m's update, θ: the vector that it was sent, the update is refused if

    ‖δ_m‖ > L · median over the updates of the round           (if there are at least four of this vector)
    ‖δ_m‖ > L · median over client m's last five updates       (if there are at least three in this task)
    ‖δ_m‖ > 10⁶ · max(1, ‖θ‖)                                  (for small federations in their first rounds)

Earlier tasks do not count: updates get small while a task is learned, and the first ones of the next task are honestly
many times larger. An honest update that diverged is refused, too: a last batch of two samples in a BatchNorm layer made
some 50 times as large as the others, mostly in the running variance. A median of 0 says nothing and is not used. Only
accepted updates count as a client's last five.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from fedspecial.core.messages import Tensors
from fedspecial.engine.aggregate import norm

MIN_UPDATES = 4
HISTORY = 5
MIN_HISTORY = 3
LARGEST_GROWTH = 1e6

VectorNorms = dict[str, float]
"""Name of a vector → norm of its change."""
NormHistory = dict[str, list[float]]
"""``TASK/CLIENT/VECTOR`` → the norms of the client's last accepted updates; `ServerState.update_norms`."""


def vector_norms(deltas: Tensors) -> VectorNorms:
    return {name: norm(delta) for name, delta in deltas.items()}


def largest_norms(sent: Tensors) -> VectorNorms:
    """Name of a vector → the largest norm of a change of it that can be meant seriously."""
    return {name: LARGEST_GROWTH * max(1.0, norm(vector)) for name, vector in sent.items()}


def too_large(
    norms: Mapping[int, VectorNorms], largest: Mapping[int, VectorNorms], history: NormHistory, task: int, limit: float
) -> dict[int, str]:
    """Client → why its update is refused.

    norms, largest: by client, in the order in which the updates arrived
    """
    of_round: dict[str, list[float]] = {}
    for vectors in norms.values():
        for name, size in vectors.items():
            of_round.setdefault(name, []).append(size)
    medians = {name: statistics.median(sizes) for name, sizes in of_round.items() if len(sizes) >= MIN_UPDATES}
    found: dict[int, str] = {}
    for client, vectors in norms.items():
        for name, size in vectors.items():
            own = history.get(_key(task, client, name), [])
            own_median = statistics.median(own) if len(own) >= MIN_HISTORY else 0.0
            if size > largest[client][name]:
                found[client] = f"the update of '{name}' has norm {size:.3g}, more than a million times the model's"
            elif 0 < limit * medians.get(name, 0.0) < size:
                found[client] = _reason(name, size, limit, medians[name], f"this round's {len(of_round[name])} updates")
            elif 0 < limit * own_median < size:
                found[client] = _reason(name, size, limit, own_median, f"its own last {len(own)} updates")
            if client in found:
                break
    return found


def remember(history: NormHistory, task: int, client: int, norms: VectorNorms) -> None:
    """Add an accepted update; norms of other tasks are dropped."""
    for key in [key for key in history if not key.startswith(f"{task}/")]:
        del history[key]
    for name, size in norms.items():
        key = _key(task, client, name)
        history[key] = [*history.get(key, []), size][-HISTORY:]


def _key(task: int, client: int, name: str) -> str:
    return f"{task}/{client}/{name}"


def _reason(name: str, size: float, limit: float, median: float, of: str) -> str:
    return (
        f"the update of '{name}' has norm {size:.3g}, above norm_limit={limit:g} times {median:.3g}, the median of {of}"
    )
