"""Optimizers of the server: what becomes of the mean delta before the method takes its server step.

The mean of the clients' deltas plays the part of a negative gradient (Reddi et al., Adaptive Federated Optimization,
ICLR 2021, Algorithm 2). With Δ: mean delta, γ_G: `server_lr`, all operations element by element:

    sgd       θ ← θ + γ_G·Δ                                                       (FedAvg)
    momentum  m ← β·m + Δ                                      θ ← θ + γ_G·m      (FedAvgM, Hsu et al., 2019)
    adagrad   m ← β1·m + (1−β1)·Δ   v ← v + Δ²                                    (FedAdagrad)
    yogi      m as above            v ← v − (1−β2)·Δ²·sign(v − Δ²)                (FedYogi)
    adam      m as above            v ← β2·v + (1−β2)·Δ²                          (FedAdam)
              the last three:                                  θ ← θ + γ_G·m/(√v + τ)

β: `server_momentum` · β1: `server_beta1` · β2: `server_beta2` · τ: `server_tau`. In the beginning m = 0 and v = τ²;
there is no bias correction, as in the paper.

Each method then steps with the direction (m, or m/(√v + τ)) in the place of Δ, so that SPECIAL's pull comes after the
optimizer's step. Only weights have an optimizer: BatchNorm statistics and networks beside the classifier are averaged.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedspecial.config import Config
from fedspecial.core.messages import THETA, ServerState, Tensors

_FIRST, _SECOND = "first", "second"


def replace_deltas(config: Config, server: ServerState, mean: Tensors, num_weights: int) -> None:
    """Put the optimizer's direction in the place of the mean delta of each model, in place.

    A method may train several models (`server.models`): each has a state of its own, which changes in the rounds in
    which the model is trained.
    """
    for name, delta in mean.items():
        if name == THETA or name in server.models:
            weights = delta[:num_weights]
            weights.copy_(_direction(config, server.optimizer, name, weights))


def _direction(config: Config, state: Tensors, name: str, delta: Tensor) -> Tensor:
    first = _moment(config, state, f"{name}/{_FIRST}", delta)
    if config.server_optimizer == "momentum":
        return first.mul_(config.server_momentum).add_(delta)
    square, beta2 = delta.square(), config.server_beta2
    second = _moment(config, state, f"{name}/{_SECOND}", delta)
    first.lerp_(delta, 1 - config.first_moment_decay)
    match config.server_optimizer:
        case "adagrad":
            second.add_(square)
        case "adam":
            second.lerp_(square, 1 - beta2)
        case "yogi":
            second.sub_(square * (second - square).sign(), alpha=1 - beta2)
    return first / second.sqrt().add_(config.server_tau)


def begin_task(config: Config, server: ServerState) -> None:
    """With `server_optimizer_reset`, every task begins without a past."""
    if config.server_optimizer_reset:
        server.optimizer.clear()


def initial_value(config: Config, name: str) -> float:
    """The value with which every entry of a state begins, also that of an output which the head gets later."""
    return config.server_tau**2 if name.endswith(_SECOND) else 0.0


def _moment(config: Config, state: Tensors, name: str, delta: Tensor) -> Tensor:
    if name not in state:
        state[name] = torch.full_like(delta, initial_value(config, name))
    return state[name]
