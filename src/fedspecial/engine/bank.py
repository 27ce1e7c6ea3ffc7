"""The server's bank of BatchNorm statistics (`batch_norm=bank`): what is stored when, and how its size is limited.

When a task begins, the statistics with which the previous one ended are stored. Clients download each stored set once.
With more than `bank_size` sets, the two that are most alike are merged, so that domains that come back do not let the
bank grow. How sets are used to predict: `core/statistics_bank.py`.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from fedspecial.core.messages import Broadcast, ServerState
from fedspecial.core.statistics_bank import PREFIX, sets_in
from fedspecial.core.vector import Layout

TASKS = "statistics_bank_tasks/"
"""The names of the numbers in the server's state that say how many tasks a set stands for."""
_EPS = 1e-5


def store(server: ServerState, statistics: Tensor, layout: Layout, size: int) -> None:
    """Add the statistics of a task that has ended; with more than `size` sets, merge two of them."""
    sets = [*sets_in(server.tensors).values(), statistics.clone()]
    tasks = [int(server.numbers[f"{TASKS}{number}"]) for number in range(1, len(sets))] + [1]
    if len(sets) > size:
        channels = _channels(layout)
        pairs = itertools.combinations(range(len(sets)), 2)
        kept, gone = min(pairs, key=lambda pair: distance(sets[pair[0]], sets[pair[1]], channels))
        sets[kept] = merged(sets[kept], sets[gone], tasks[kept] / (tasks[kept] + tasks[gone]), channels)
        tasks[kept] += tasks[gone]
        del sets[gone], tasks[gone]
    for number, (values, count) in enumerate(zip(sets, tasks, strict=True), start=1):
        server.tensors[f"{PREFIX}{number}"] = values
        server.numbers[f"{TASKS}{number}"] = count


def add_sets(server: ServerState, message: Broadcast) -> None:
    """Send the stored sets with a message; a client that has a set already does not get it again."""
    message.payloads |= sets_in(server.tensors)


def distance(first: Tensor, second: Tensor, channels: tuple[Tensor, Tensor]) -> float:
    """How different two sets are: the symmetric Kullback-Leibler divergence of normal distributions, mean over
    channels."""
    (m1, v1), (m2, v2) = ((values[channels[0]], values[channels[1]] + _EPS) for values in (first, second))
    gap = (m1 - m2).square()
    return float(0.25 * ((v1 + gap) / v2 + (v2 + gap) / v1 - 2).mean())


def merged(first: Tensor, second: Tensor, share: float, channels: tuple[Tensor, Tensor]) -> Tensor:
    """The mean and variance of the mixture of two sets; `share`: the weight of the first one."""
    means, variances = channels
    result = torch.lerp(second, first, share)
    squares = [values[variances] + values[means].square() for values in (first, second)]
    result[variances] = torch.lerp(squares[1], squares[0], share) - result[means].square()
    return result


def _channels(layout: Layout) -> tuple[Tensor, Tensor]:
    """Where the means and the variances of the BatchNorm layers are in a vector of buffers, in the same order."""
    means, variances = layout.statistics
    return means - layout.num_weights, variances - layout.num_weights
