"""`lam=auto`: λ from the curvature of the earlier tasks, measured with the mean of the updates alone.

    λ_t = min( γ_G·γ_L·steps · Σ_{earlier tasks} κ , 1 )
    κ = Σ_t y_t·s_{t−1} / Σ_t s_t·s_{t−1},   y_t = g_t − g_{t−1},   s_t = θ_t − θ_{t−1},   over the rounds of a task

g_t: −Δ_t/(γ_L·steps), the mean gradient along the paths that start from θ_t · all vectors over weights only

On f(θ) = (h/2)·‖θ − θ*‖² every y_t is h·s_t, so κ = h. The pull with λ = γ_G·γ_L·steps·κ is the weight (κ/2)·‖θ − a‖²
in the objective (`mu` of SPECIAL): a second-order approximation of the earlier tasks with one number for their
curvature (Laplace). There is no constant to choose.

Why s_{t−1} and not s_t: g_{t−1} and s_t are made of the same updates, so y_t·s_t would count their noise as curvature.
The step before comes from other batches and other clients: its noise is independent of y_t and s_t, and does not count
(an instrumental variable). Multiplying γ_L or the number of steps by a constant does not change λ, so other optimizers
of the clients than SGD are no problem. A server optimizer is one: Δ_t is then what it made of the mean update and of
earlier ones, and κ is not the curvature of the loss. Only the mean of the updates is needed.

Until there is evidence λ is 0.1, the default of SPECIAL; a task without evidence (fewer than three rounds, or steps
that point against each other) adds nothing. λ is at most 1: the model moves by at least half of every step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedspecial.core.messages import ServerState
from fedspecial.methods.base import RoundInfo

WITHOUT_EVIDENCE, STRONGEST = 0.1, 1.0
_GRADIENT, _STEP, _STEP_BEFORE = (f"secant/{name}" for name in ("gradient", "step", "step_before"))
_ABOVE, _BELOW, _CURVATURE = (f"secant/{name}" for name in ("above", "below", "curvature"))


def begin_task(server: ServerState) -> None:
    """Add the curvature of the task that has ended, and begin a new measurement."""
    above, below = (server.numbers.pop(name, 0.0) for name in (_ABOVE, _BELOW))
    if below > 0 and above > 0:
        server.numbers[_CURVATURE] = server.numbers.get(_CURVATURE, 0.0) + above / below
    for name in (_GRADIENT, _STEP, _STEP_BEFORE):
        server.tensors.pop(name, None)


def strength(server: ServerState, info: RoundInfo) -> float:
    """λ of this round."""
    if _CURVATURE not in server.numbers:
        return WITHOUT_EVIDENCE * info.scale
    return min(info.server_lr * info.client_lr * info.mean_steps * server.numbers[_CURVATURE], STRONGEST)


def observe(server: ServerState, delta: Tensor, before: Tensor, info: RoundInfo) -> None:
    """Compare the mean update of this round with the last one; `before`: θ at the beginning of the round.

    Called when θ has made its step. The memory is three vectors.
    """
    tensors, path = server.tensors, info.client_lr * info.mean_steps
    if path == 0 or info.context is None:
        return
    weights = slice(info.context.model.layout.num_weights)
    gradient = delta[weights] / -path
    if _STEP_BEFORE in tensors:
        sums = {_ABOVE: gradient - tensors[_GRADIENT], _BELOW: tensors[_STEP]}
        for name, vector in sums.items():
            server.numbers[name] = server.numbers.get(name, 0.0) + _dot(vector, tensors[_STEP_BEFORE])
    if _STEP in tensors:
        tensors[_STEP_BEFORE] = tensors[_STEP]
    tensors[_GRADIENT], tensors[_STEP] = gradient, server.theta[weights] - before[weights]


def _dot(first: Tensor, second: Tensor) -> float:
    products = first * second
    return float(products.cpu().sum(dtype=torch.float64))
