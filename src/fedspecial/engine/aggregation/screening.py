"""Refusing updates that cannot be true, and updates that are far larger than others: `norm_limit`.

With L: `norm_limit`, d_m: the size of a part of client m's update, M: the largest median of this part over the updates
of a round so far, this one included, θ: the vector that was sent, δ_m: its change, an update is refused if

    d_m > L · M                                       (if there are at least four of this part in the round)
    d_m > L · max(M, median of client m's last five)  (if there are at least three in this task)
    ‖δ_m‖ > 10⁶ · max(1, ‖θ‖)                         (for small federations in their first rounds)

The parts are measured apart. The size of weights is the norm of their change. A running variance may honestly grow a
thousandfold in a round, so the change of BatchNorm statistics is measured relative to them: for each channel, by the
distance of Fisher and Rao between the normal distributions before and after; it grows with the logarithm of the
variance, and does not depend on the scale of the features.

Earlier rounds count because updates get small while a task is learned, and then a batch that the model gets wrong makes
one many times larger, yet not larger than updates were before. So a client can never do more than in the round with the
largest updates. For its own last five, earlier tasks do not count: the first updates of a task are honestly larger.
Medians of 0 say nothing and are not used. Only accepted updates count as a client's last five and for M.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from fedspecial.core.messages import BUFFERS, Tensors
from fedspecial.core.vector import FlatModel, Layout
from fedspecial.engine.aggregation.mean import norm

MIN_UPDATES = 4
HISTORY = 5
MIN_HISTORY = 3
LARGEST_GROWTH = 1e6
_EPS = 1e-5  # of torch's BatchNorm layers: what a variance may be off without any effect
_ROUNDING = 1e-5
_EARLIER = "the earlier round with the largest updates"

Sizes = dict[str, float]
"""Name of a part → the size of its change. The BatchNorm statistics of a vector are a part of their own."""
History = dict[str, list[float]]
"""``TASK/CLIENT/PART`` → the sizes of the client's last accepted updates; ``largest/PART`` → M of the rounds so far;
`ServerState.update_norms`."""
Statistics = Callable[[str, Tensor], tuple[Tensor, Tensor] | None]
"""Name of a vector, the vector → where its BatchNorm means and variances are; None if it has none."""


def statistics_of(model: FlatModel, networks: Mapping[str, FlatModel]) -> Statistics:
    """For the vectors that are sent in a run. Vectors may lack the buffers; one that is no network's is the model's."""

    def places(name: str, vector: Tensor) -> tuple[Tensor, Tensor] | None:
        layout: Layout = networks.get(name, model).layout
        if not len(layout.statistics[0]):
            return None
        if name == BUFFERS:
            means, variances = layout.statistics
            return means - layout.num_weights, variances - layout.num_weights
        return layout.statistics if len(vector) == layout.size else None

    return places


def impossible(deltas: Tensors, sent: Tensors, statistics_in: Statistics) -> str | None:
    """Why an update cannot be the result of training, whatever the others are; None if it can."""
    for name, delta in deltas.items():
        places = statistics_in(name, delta)
        if places is not None:
            before, change = sent[name][places[1]], delta[places[1]]
            if bool(((before >= 0) & (before + change < -_ROUNDING * (before + _EPS))).any()):
                return f"'{name}' has a negative running variance"
    return None


def beyond_all(deltas: Tensors, sent: Tensors) -> str | None:
    """The same for a change that no training makes."""
    for name, delta in deltas.items():
        size = norm(delta)
        if size > LARGEST_GROWTH * max(1.0, norm(sent[name])):
            return f"the update of '{name}' has norm {size:.3g}, more than a million times the model's"
    return None


def sizes(deltas: Tensors, sent: Tensors, statistics_in: Statistics) -> Sizes:
    """The size of each part of an update."""
    found = {}
    for name, delta in deltas.items():
        places = statistics_in(name, delta)
        if places is None:
            found[name] = norm(delta)
            continue
        found[f"{name} statistics"] = _distance(sent[name], delta, places)
        first = int(places[0].min())  # buffers are at the end of a vector
        others = torch.ones(len(delta) - first, dtype=torch.bool)
        others[torch.cat(places) - first] = False
        if first or bool(others.any()):
            found[name] = math.hypot(norm(delta[:first]), norm(delta[first:][others.to(delta.device)]))
    return found


def _distance(sent: Tensor, delta: Tensor, places: tuple[Tensor, Tensor]) -> float:
    """Norm over the channels of the distance of Fisher and Rao between N(m, v) before and after."""
    (shift, growth), variance = (delta[at].cpu().double() for at in places), sent[places[1]].cpu().double()
    before, after = ((v.clamp_min(0) + _EPS).sqrt() for v in (variance, variance + growth))
    cosh = 1 + (shift.square() / 2 + (after - before).square()) / (2 * before * after)
    return math.sqrt(2) * float(torch.linalg.vector_norm(torch.acosh(cosh)))


def too_large(found: Mapping[int, Sizes], history: History, task: int, limit: float) -> dict[int, str]:
    """Client → why its update is refused.

    found: client → the sizes of its update, in the order in which the updates arrived
    """
    medians = _medians(found.values(), MIN_UPDATES)
    refused: dict[int, str] = {}
    for client, parts in found.items():
        for name, size in parts.items():
            own = history.get(_key(task, client, name), [])
            earlier = history.get(_largest(name), [0.0])[0]
            of_round = max(medians[name], earlier) if medians.get(name) else 0.0
            own_median = statistics.median(own) if len(own) >= MIN_HISTORY else 0.0
            of_own = max(own_median, earlier) if own_median else 0.0
            if 0 < limit * of_round < size:
                others = "the updates of this round" if of_round == medians[name] else _EARLIER
                refused[client] = _reason(name, size, limit, of_round, others)
            elif 0 < limit * of_own < size:
                others = f"its own last {len(own)} updates" if of_own == own_median else _EARLIER
                refused[client] = _reason(name, size, limit, of_own, others)
            if client in refused:
                break
    return refused


def remember(history: History, task: int, accepted: Mapping[int, Sizes]) -> None:
    """Add the accepted updates of a round; sizes of other tasks are dropped."""
    for key in [key for key in history if not key.startswith((f"{task}/", _largest("")))]:
        del history[key]
    for client, parts in accepted.items():
        for name, size in parts.items():
            key = _key(task, client, name)
            history[key] = [*history.get(key, []), size][-HISTORY:]
    for name, median in _medians(accepted.values(), MIN_HISTORY).items():
        history[_largest(name)] = [max(median, *history.get(_largest(name), [0.0]))]


def _medians(found: Iterable[Sizes], least: int) -> Sizes:
    """Name of a part → the median of its sizes, if there are at least this many."""
    by_name: dict[str, list[float]] = {}
    for parts in found:
        for name, size in parts.items():
            by_name.setdefault(name, []).append(size)
    return {name: statistics.median(values) for name, values in by_name.items() if len(values) >= least}


def _key(task: int, client: int, name: str) -> str:
    return f"{task}/{client}/{name}"


def _largest(name: str) -> str:
    return f"largest/{name}"


def _reason(name: str, size: float, limit: float, median: float, of: str) -> str:
    what = f"the update of '{name}' has {'size' if name.endswith(' statistics') else 'norm'} {size:.3g}"
    return f"{what}, above norm_limit={limit:g} times {median:.3g}, the median of {of}"
