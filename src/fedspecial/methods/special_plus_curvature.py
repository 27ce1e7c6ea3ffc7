"""The spread of the clients' updates in a round, and the curvature that follows from it.

    Var_m(Δ_k) = ( Σ_m Δ_mk² − (Σ_m Δ_mk)²/n ) / (n − 1)           for each weight k, over the n updates of a round
    F_k = B · Var_m(Δ_k) / (γ_L² · steps)

B: batch size · γ_L: learning rate of the clients · steps: local steps. An update is the sum of `steps` stochastic
gradients, each times γ_L. If the clients differed by their random batches alone, the variance of one such gradient
would be that of a sample's gradient over B, so that F_k is the variance of a sample's gradient: near an optimum of a
log-likelihood, the diagonal of the Fisher information, which is the curvature there. Clients with different data
spread more, and F_k is then larger. It is an estimate of how much a weight matters, not a bound.

Two updates are kept as they are: their variance is (Δ_1 − Δ_2)²/2. With the third one, sums in float64 begin, two
vectors for any number of clients, around the mean so far (Welford's method):

    d = Δ_n − mean,      squares += d²·(n − 1)/n,      mean += d/n

Unlike Σ Δ² − (Σ Δ)²/n this loses nothing where the updates hardly differ. The order of arrival changes nothing with two
updates, and with more no more than the last bits, which rounding to float32 removes. The updates of a round without a
quorum count with those of the next round, since they started from the same model.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedspecial.core.messages import ServerState, Tensors
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
FIRST, SECOND, MEAN_UPDATE, SQUARES = (f"spread/{name}" for name in ("first", "second", "mean", "squares"))
COUNT = "spread/count"
_BLOCK = 1 << 17
"""Vectors are processed in blocks that stay in the processor's cache: 512 kB of float32."""
_LARGEST = 1e30
"""The squares of a run that diverges overflow; its curvature stays finite, so that its events can be written."""
_WITHOUT_FLOAT64 = ("mps",)


def add(server: ServerState, delta: Tensor) -> None:
    """Add one client's update to those of the round."""
    tensors = server.tensors
    count = server.numbers[COUNT] = server.numbers.get(COUNT, 0) + 1
    if count <= 2:
        name = FIRST if count == 1 else SECOND
        tensors[name] = _vector(server, name, delta, delta.dtype).copy_(delta)
        return
    if count == 3:
        first, second = (tensors.pop(name) for name in (FIRST, SECOND))
        tensors[MEAN_UPDATE] = _vector(server, MEAN_UPDATE, first, torch.float64).copy_(first)
        tensors[SQUARES] = _vector(server, SQUARES, first, torch.float64).zero_()
        _add_to_sums(tensors, second, 2)
        server.scratch |= {FIRST: first, SECOND: second}
    _add_to_sums(tensors, delta, int(count))


def _add_to_sums(tensors: Tensors, delta: Tensor, count: int) -> None:
    mean, squares = tensors[MEAN_UPDATE], tensors[SQUARES]
    scratch = mean.new_empty(min(_BLOCK, len(mean)))
    for block in blocks(len(mean)):
        difference = scratch[: block.stop - block.start].copy_(delta[block]).sub_(mean[block])
        squares[block].addcmul_(difference, difference, value=(count - 1) / count)
        mean[block].add_(difference, alpha=1 / count)


def _vector(server: ServerState, name: str, like: Tensor, dtype: torch.dtype) -> Tensor:
    """A vector of any content: that of the last round if possible, because new memory costs more time than the sums."""
    vector = server.scratch.pop(name, None)
    if vector is not None and len(vector) == len(like):
        return vector
    on_cpu = dtype == torch.float64 and like.device.type in _WITHOUT_FLOAT64
    return torch.empty(len(like), dtype=dtype, device="cpu" if on_cpu else like.device)


def take(server: ServerState) -> tuple[Tensors, int]:
    """The vectors of the updates since the last call, valid until the next update, and their number; begins again."""
    count = int(server.numbers.pop(COUNT, 0))
    used = {name: server.tensors.pop(name) for name in (FIRST, SECOND, MEAN_UPDATE, SQUARES) if name in server.tensors}
    server.scratch |= used
    return used, count


def blocks(length: int) -> Iterator[slice]:
    """Consecutive parts of a vector."""
    return (slice(at, min(at + _BLOCK, length)) for at in range(0, length, _BLOCK))


def learn_curvature(server: ServerState, info: RoundInfo) -> None:
    """Add F of the round's updates to the sum of the current task; for the server step, before θ is changed."""
    used, count = take(server)
    if count < 2 or info.context is None or not info.mean_steps or not info.client_lr:
        return
    if CURRENT not in server.per_weight:
        weights = info.context.model.layout.num_weights
        server.per_weight[CURRENT] = torch.zeros(weights, device=server.theta.device)
    current = server.per_weight[CURRENT]
    divisor = 2 if count == 2 else count - 1
    scale = info.batch_size / (info.client_lr**2 * info.mean_steps * divisor)
    scratch = torch.empty(min(_BLOCK, len(current)), dtype=current.dtype, device=current.device)
    for block in blocks(len(current)):
        squares = _squares(used, block, scratch) if count == 2 else used[SQUARES][block].to(current)
        current[block].add_(squares, alpha=scale).clamp_(max=_LARGEST)
    server.numbers[ROUNDS] = server.numbers.get(ROUNDS, 0) + 1


def _squares(two: Tensors, block: slice, scratch: Tensor) -> Tensor:
    """(Δ_1 − Δ_2)² in one block; it stays in the processor's cache until it is used."""
    difference = torch.sub(two[FIRST][block], two[SECOND][block], out=scratch[: block.stop - block.start])
    return difference.mul_(difference)


def finish_task(server: ServerState) -> None:
    """Add the mean over the rounds of the task that has ended to the curvature of the earlier tasks."""
    take(server)  # updates of a last round without a quorum: their model has another task's data now
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
