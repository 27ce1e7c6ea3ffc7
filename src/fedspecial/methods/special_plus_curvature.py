"""The spread of the clients' updates in a round, and the curvature that follows from it.

    Var_m(Δ_k) = ( Σ_m Δ_mk² − (Σ_m Δ_mk)²/n ) / (n − 1)           for each weight k, over the n updates of a round
    F_k = B · Var_m(Δ_k) / (γ_L² · steps)

B: batch size · γ_L: learning rate of the clients · steps: local steps. An update is the sum of `steps` stochastic
gradients, each times γ_L. If the clients differed by their random batches alone, the variance of one such gradient
would be that of a sample's gradient over B, so that F_k is the variance of a sample's gradient: near an optimum of a
log-likelihood, the diagonal of the Fisher information, which is the curvature there. Clients with different data
spread more, and F_k is then larger. It is an estimate of how much a weight matters, not a bound.

The sums are taken in float64 as the updates arrive: two vectors for any number of clients, and the order of arrival
changes no more than the last bits, which rounding to float32 removes. The updates of a round without a quorum count
with those of the next round, since they started from the same model.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedspecial.core.messages import ServerState
from fedspecial.methods.base import RoundInfo

CURVATURE = "curvature"
"""The name of F in `ServerState.per_weight`: the sum over the tasks that have ended."""
CURRENT = "curvature_of_this_task"
"""The sum over the rounds of the current task so far, of which `ROUNDS` had a spread."""
ROUNDS = "rounds_with_spread"
LEAST, LEAST_ANCHORED, MEAN, SHARE = (f"curvature/{name}" for name in ("least", "least_anchored", "mean", "share"))
"""Numbers about F: its smallest entry, the smallest of the anchored part, its mean, the share of weights there."""
ANCHORED = 0.1
"""The anchored part, which the certificate covers: the weights with at least this share of the mean curvature."""
SUM, SQUARES, COUNT = "spread/sum", "spread/squares", "spread/count"
_BLOCK = 1 << 15
"""Vectors are processed in blocks that stay in the processor's cache: 256 kB of float64."""
_RESOLUTION = 2.0**-24
"""A variance below this share of the squared mean is what float32 cannot resolve in the updates: it counts as none."""


def add(server: ServerState, delta: Tensor) -> None:
    """Add one client's update to the sums of the round."""
    if SUM not in server.tensors:
        device = "cpu" if delta.device.type == "mps" else delta.device  # MPS has no float64
        for name in (SUM, SQUARES):
            server.tensors[name] = torch.zeros(len(delta), dtype=torch.float64, device=device)
        server.numbers[COUNT] = 0
    total, squares = server.tensors[SUM], server.tensors[SQUARES]
    server.numbers[COUNT] += 1
    for block in blocks(len(delta)):
        part = delta[block].to(total.device, torch.float64)
        total[block].add_(part)
        squares[block].addcmul_(part, part)


def take(server: ServerState, length: int) -> Tensor | None:
    """The variance of the first `length` entries over the updates since the last call, in float32; None where fewer
    than two have arrived. The sums begin again."""
    if SUM not in server.tensors:
        return None
    total, squares = (server.tensors.pop(name)[:length] for name in (SUM, SQUARES))
    count = int(server.numbers.pop(COUNT))
    if count < 2:
        return None
    variance = torch.empty(len(total), device=server.theta.device)
    for block in blocks(len(total)):
        part = total[block].square_().div_(count)  # n times the squared mean
        rest = squares[block].sub_(part)
        rest.masked_fill_(rest <= part.mul_(_RESOLUTION), 0.0)
        variance[block] = rest.div_(count - 1)
    return variance


def blocks(length: int) -> Iterator[slice]:
    """Consecutive parts of a vector."""
    return (slice(at, min(at + _BLOCK, length)) for at in range(0, length, _BLOCK))


def learn_curvature(server: ServerState, info: RoundInfo) -> None:
    """Add F of the round's updates to the sum of the current task; for the server step, before θ is changed."""
    if SUM not in server.tensors or info.context is None:
        return
    spread = take(server, info.context.model.layout.num_weights)
    if spread is None or not info.mean_steps or not info.client_lr:
        return
    spread.mul_(info.batch_size / (info.client_lr**2 * info.mean_steps))
    known = server.per_weight.get(CURRENT)
    server.per_weight[CURRENT] = spread if known is None else known.add_(spread)
    server.numbers[ROUNDS] = server.numbers.get(ROUNDS, 0) + 1


def finish_task(server: ServerState) -> None:
    """Add the mean over the rounds of the task that has ended to the curvature of the earlier tasks."""
    take(server, 0)  # updates of a last round without a quorum: their model has another task's data now
    if rounds := server.numbers.pop(ROUNDS, 0):
        new = server.per_weight.pop(CURRENT).div_(rounds)
        known = server.per_weight.get(CURVATURE)
        server.per_weight[CURVATURE] = new if known is None else known.add_(new)
    if CURVATURE in server.per_weight:
        _describe(server, server.per_weight[CURVATURE])


def _describe(server: ServerState, found: Tensor) -> None:
    """The numbers about F that a round needs; F changes only between tasks."""
    mean = float(found.cpu().mean(dtype=torch.float64))
    chosen = found >= ANCHORED * mean
    server.numbers[MEAN], server.numbers[SHARE] = mean, float(chosen.cpu().double().mean())
    server.numbers[LEAST] = float(found.min())
    server.numbers[LEAST_ANCHORED] = float(found[chosen].min())
