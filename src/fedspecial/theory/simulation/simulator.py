"""SPECIAL in NumPy, for many replicates at once: a reference for the bounds and for other implementations.

`server_step` repeats the server step of `fedspecial.methods.special.Special`, which needs torch; a test checks
that the two agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedspecial.theory.arrays import Vector
from fedspecial.theory.constants import RoundConfig
from fedspecial.theory.simulation.problems import Problem

Measure = Callable[[Vector], Vector]


@dataclass(frozen=True)
class Trace:
    """Results of T rounds: the final theta (replicates, d), and norms and measurements per round and replicate."""

    theta: Vector
    drift: Vector  # (T, replicates): ‖theta^{t+1} - a‖
    delta_norm: Vector  # (T, replicates)
    max_client_delta: Vector  # (T, replicates)
    measured: Vector  # (T + 1, replicates): ``measure`` at theta^0, ..., theta^T; empty if there is none


def server_step(theta: Vector, delta: Vector, *, server_lr: float, lam: float, anchor: Vector) -> Vector:
    """theta' = (theta + gamma_G Delta + lam a) / (1 + lam). lam = 0 is FedAvg, bit for bit.

    >>> float(server_step(np.array(0.0), np.array(3.0), server_lr=1.0, lam=0.5, anchor=np.array(1.0)))
    2.3333333333333335
    """
    moved = theta + server_lr * delta
    return np.asarray(moved if lam == 0 else (moved + lam * anchor) / (1 + lam))


def apply_deltas(
    anchor: ArrayLike,
    deltas: Sequence[ArrayLike],
    server_lr: float | Sequence[float],
    lam: float | Sequence[float],
) -> list[Vector]:
    """theta^1, ..., theta^T from the mean deltas alone, starting at the anchor, in float64.

    Any other implementation must compute the same models from the same deltas, up to rounding.
    """
    start = np.asarray(anchor, dtype=np.float64)
    rates, strengths = np.broadcast_to(server_lr, len(deltas)), np.broadcast_to(lam, len(deltas))
    theta, path = start, []
    for delta, rate, strength in zip(deltas, rates, strengths, strict=True):
        change = np.asarray(delta, dtype=np.float64)
        theta = server_step(theta, change, server_lr=float(rate), lam=float(strength), anchor=start)
        path.append(theta)
    return path


def simulate(
    problem: Problem,
    cfg: RoundConfig,
    *,
    anchor: ArrayLike,
    replicates: int = 1,
    seed: int = 0,
    measure: Measure | None = None,
) -> Trace:
    """Simulate task cfg.task_index for cfg.rounds rounds, starting at ``anchor`` (shape d, or one per replicate)."""
    if problem.num_clients != cfg.num_clients:
        raise ValueError(f"num_clients must equal the problem's {problem.num_clients}, got {cfg.num_clients}")
    if cfg.task_index > problem.num_tasks:
        raise ValueError(f"task_index must be at most the problem's {problem.num_tasks}, got {cfg.task_index}")
    rng = np.random.default_rng(seed)
    start = np.array(np.broadcast_to(np.asarray(anchor, dtype=np.float64), (replicates, problem.dim)))
    theta = start
    norms = np.empty((3, cfg.rounds, replicates))
    measured = [] if measure is None else [measure(theta)]
    for t in range(cfg.rounds):
        deltas = _client_deltas(problem, cfg, theta, rng)
        delta = deltas.mean(axis=1)
        theta = server_step(theta, delta, server_lr=cfg.server_lr, lam=cfg.effective_lam, anchor=start)
        norms[0, t] = np.linalg.norm(theta - start, axis=-1)
        norms[1, t] = np.linalg.norm(delta, axis=-1)
        norms[2, t] = np.linalg.norm(deltas, axis=-1).max(axis=1)
        if measure is not None:
            measured.append(measure(theta))
    return Trace(theta, norms[0], norms[1], norms[2], np.array(measured))


def simulate_tasks(
    problem: Problem, cfg: RoundConfig, *, theta: ArrayLike, replicates: int = 1, seed: int = 0
) -> list[Trace]:
    """Simulate all tasks in order. The anchor is the final model of the previous task; the first task has none."""
    traces: list[Trace] = []
    for task in range(1, problem.num_tasks + 1):
        here = replace(cfg, task_index=task, anchored=task > 1)
        start = traces[-1].theta if traces else theta
        traces.append(simulate(problem, here, anchor=start, replicates=replicates, seed=seed + task))
    return traces


def minimise(problem: Problem, tasks: Sequence[int], theta: ArrayLike, steps: int = 2000) -> Vector:
    """Gradient descent with step size 1/L on the sum of the tasks' losses, without noise."""
    point = np.asarray(theta, dtype=np.float64)
    rate = 1 / (len(tasks) * problem.smoothness)
    for _ in range(steps):
        point = point - rate * sum(problem.task_gradient(task, point) for task in tasks)
    return point


def _client_deltas(problem: Problem, cfg: RoundConfig, theta: Vector, rng: np.random.Generator) -> Vector:
    """(replicates, N, d): the change of each sampled client after E steps of SGD from theta."""
    clients = _sample(len(theta), cfg, rng)
    local = np.repeat(theta[:, None, :], cfg.clients_per_round, axis=1)
    start = local
    for _ in range(cfg.local_steps):
        local = local - cfg.client_lr * problem.gradient(cfg.task_index, clients, local, rng)
    return np.asarray(local - start)


def _sample(replicates: int, cfg: RoundConfig, rng: np.random.Generator) -> NDArray[np.int64]:
    """(replicates, N) clients, uniform without replacement."""
    if cfg.clients_per_round == cfg.num_clients:
        return np.broadcast_to(np.arange(cfg.num_clients), (replicates, cfg.num_clients))
    order = rng.random((replicates, cfg.num_clients)).argsort(axis=1)
    return order[:, : cfg.clients_per_round]
