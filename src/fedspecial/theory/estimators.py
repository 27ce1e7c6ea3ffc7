"""Estimates of the constants of the problem from gradients observed in a run.

Each estimate has a ``kind``: "exact"; "upper" or "lower", a bound on the constant from that side; or "plugin",
an estimate whose square is unbiased or nearly so. A maximum over observed values is "lower": the true constant
may be larger. A bound that is computed from it can therefore be violated, and a certificate then reports a
wrong constant, not a bug.

Quantities of old tasks (G, sigma_task, alignment) need old data, or gradients stored when the task ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fedspecial.core.events import Estimate
from fedspecial.theory import validation
from fedspecial.theory.arrays import Vector, flat, flat_norm

_OLD_DATA = "needs old data or gradients stored at the end of each task"


def grad_bound_running(norms: Iterable[float]) -> Estimate:
    """B >= max of the gradient norms observed so far."""
    seen = [validation.nonnegative("norms", norm) for norm in norms]
    return Estimate(max(_some("norms", seen)), "lower", len(seen), "largest stochastic gradient observed so far")


def smoothness_power(
    grad_fn: Callable[[Vector], Any],
    theta: Any,
    iters: int = 30,
    h: float | None = None,
    rng: np.random.Generator | None = None,
) -> Estimate:
    """L >= |largest eigenvalue of the Hessian at theta|, by power iteration on (g(theta + hv) - g(theta -
    hv)) / 2h.

    Each iteration computes two gradients. The estimate is local, and a lower bound: the curvature may be larger
    at other points.
    """
    point = flat(theta)
    step = 1e-4 * max(1.0, flat_norm(point)) if h is None else validation.positive("h", h)
    draw = np.random.default_rng(0) if rng is None else rng
    direction = _unit(draw.standard_normal(point.size))
    value = 0.0
    for _ in range(validation.count("iters", iters)):
        image = (flat(grad_fn(point + step * direction)) - flat(grad_fn(point - step * direction))) / (2 * step)
        value = float(np.linalg.norm(image))
        if value == 0 or not math.isfinite(value):
            break
        direction = image / value
    return Estimate(validation.finite("curvature", value), "lower", iters, "largest curvature at one point")


def smoothness_secant(pairs: Iterable[tuple[Any, Any]]) -> Estimate:
    """L >= max ‖dg‖ / ‖dtheta‖ over pairs (dtheta, dg) of differences of parameters and of exact gradients.

    Cheap, because it uses gradients that the run computes anyway. Pairs with dtheta = 0 are skipped. With
    mini-batch gradients, use the same batch at both points; otherwise the noise is counted as curvature.
    """
    ratios = [flat_norm(grad) / size for move, grad in pairs if (size := flat_norm(move)) > 0]
    return Estimate(max(_some("pairs", ratios)), "lower", len(ratios), "largest secant slope along the path")


def sigma_local_two_batch(g1: Sequence[Any], g2: Sequence[Any]) -> Estimate:
    """sigma_L^2 = mean of ‖g1 - g2‖^2 / 2 over pairs of gradients at one point on two independent batches.

    ``g1[j]`` and ``g2[j]`` are such a pair (for example, one per client). The value is sigma_L; its square is
    unbiased.
    """
    first, second = _same_length("g2", g1, g2)
    squares = [0.5 * flat_norm(flat(a) - flat(b)) ** 2 for a, b in zip(first, second, strict=True)]
    return Estimate(
        math.sqrt(float(np.mean(squares))),
        "plugin",
        len(squares),
        "noise of one batch; the square of the value is unbiased",
    )


def sigma_client_cross(g1_by_client: Sequence[Any], g2_by_client: Sequence[Any]) -> Estimate:
    """sigma_G^2 = (1/M) sum_m <g1_m - mean g1, g2_m - mean g2>, with two independent batches per client.

    The batch noise of the two factors is independent, so it averages out. With a single batch it would be
    counted as heterogeneity. The value is the root mean square over clients, as Theorem S uses it. A negative
    product (heterogeneity below the noise) gives 0.
    """
    first, second = _same_length("g2_by_client", g1_by_client, g2_by_client)
    if len(first) < 2:
        raise ValueError(f"g1_by_client must have at least 2 clients, got {len(first)}")
    a, b = np.stack([flat(g) for g in first]), np.stack([flat(g) for g in second])
    cross = float(((a - a.mean(axis=0)) * (b - b.mean(axis=0))).sum(axis=1).mean())
    return Estimate(math.sqrt(max(cross, 0.0)), "plugin", len(a), "root mean square over clients at one point")


def sigma_task(grads_by_task: Sequence[Any]) -> Estimate:
    """sigma_T >= max over pairs of tasks of ‖grad f_i - grad f_j‖ at one point."""
    grads = [flat(grad) for grad in grads_by_task]
    if len(grads) < 2:
        raise ValueError(f"grads_by_task must have at least 2 tasks, got {len(grads)}")
    gaps = [flat_norm(a - b) for index, a in enumerate(grads) for b in grads[:index]]
    return Estimate(max(gaps), "lower", len(gaps), _OLD_DATA)


def alignment(old_grad: Any, grads: Iterable[Any]) -> Estimate:
    """eps <= min over local gradients g of cos(grad F(a), g). Zero gradients count as aligned and are
    skipped.

    The kind is "upper", because gradients that were not observed may be less aligned. With mini-batch
    gradients, noise lowers the cosine.
    """
    reference = flat(old_grad)
    length = flat_norm(reference)
    if length == 0:
        raise ValueError(f"old_grad must not be zero, got a norm of {length!r}")
    vectors = [flat(grad) for grad in grads]
    cosines = [float(reference @ g) / (length * size) for g in vectors if (size := flat_norm(g)) > 0]
    lowest = min(_some("grads", cosines))
    return Estimate(min(1.0, max(-1.0, lowest)), "upper", len(cosines), _OLD_DATA)


def curvature_scalar(
    grad_fn: Callable[[Vector], Any], theta: Any, probes: int = 8, rng: np.random.Generator | None = None
) -> Estimate:
    """tr(Hessian) / d by Hutchinson's estimator: mean of v . Hv / d over random sign vectors v (for `laplace_lam`)."""
    point = flat(theta)
    step = 1e-4 * max(1.0, flat_norm(point)) / math.sqrt(point.size)
    draw = np.random.default_rng(0) if rng is None else rng
    values = []
    for _ in range(validation.count("probes", probes)):
        signs = draw.choice([-1.0, 1.0], size=point.size)
        image = (flat(grad_fn(point + step * signs)) - flat(grad_fn(point - step * signs))) / (2 * step)
        values.append(float(signs @ image) / point.size)
    return Estimate(float(np.mean(values)), "plugin", probes, "unbiased up to the error of the finite difference")


def _some(name: str, values: list[float]) -> list[float]:
    if not values:
        raise ValueError(f"{name} must have at least one usable entry, got none")
    return values


def _same_length(name: str, first: Sequence[Any], second: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    if len(first) != len(second) or not len(first):
        raise ValueError(f"{name} must have one entry per entry of the first batch ({len(first)}), got {len(second)}")
    return first, second


def _unit(vector: Vector) -> Vector:
    return np.asarray(vector / np.linalg.norm(vector))
