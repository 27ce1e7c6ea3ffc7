"""Synthetic federated problems whose constants are known exactly, for the studies and the tests.

Arrays are batched: theta is (..., d), and a stochastic gradient takes one client per row. Tasks are numbered
from 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedspecial.theory import validation
from fedspecial.theory.arrays import Vector
from fedspecial.theory.constants import Constants

Shape = Literal["pseudo_huber", "welsch", "quadratic"]
PROBLEMS = ("pseudo_huber", "welsch", "quadratic", "logistic")


class Problem(Protocol):
    """The interface that the simulator and the studies need."""

    @property
    def num_tasks(self) -> int: ...
    @property
    def num_clients(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def smoothness(self) -> float: ...
    def gradient(self, task: int, clients: NDArray[np.int64], theta: Vector, rng: np.random.Generator) -> Vector:
        """A stochastic gradient of f_{task, clients[j]} at theta[j]."""
        ...

    def task_gradient(self, task: int, theta: Vector) -> Vector:
        """The exact gradient of f_task, the mean over all clients."""
        ...

    def task_loss(self, task: int, theta: Vector) -> Vector:
        """The exact loss f_task."""
        ...

    def constants(self) -> Constants:
        """Exact B, L and sigma_L; upper bounds of sigma_G and sigma_T."""
        ...


@dataclass(frozen=True)
class RadialFDIL:
    """f_{i,m}(theta) = L phi(‖theta - c_{i,m}‖), with u = (r/w)^2 and width w:

        pseudo_huber   phi = w^2 (sqrt(1 + u) - 1)     gradient norm < L w             convex
        welsch         phi = w^2 (1 - exp(-u/2))       gradient norm <= L w / sqrt(e)  not convex
        quadratic      phi = r^2 / 2                   no bound, so A1 fails           convex

    All are L-smooth with the smallest possible L. Noise is uniform on a sphere of radius ``noise``, so sigma_L = noise
    exactly and B is the gradient's bound plus noise. ``centers`` is (tasks, clients, d).
    """

    centers: Vector
    shape: Shape = "pseudo_huber"
    width: float = 1.0
    smoothness: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        if self.centers.ndim != 3:
            raise ValueError(f"centers must be (tasks, clients, d), got shape {self.centers.shape}")
        if self.shape not in PROBLEMS[:3]:
            raise ValueError(f"shape must be one of {', '.join(PROBLEMS[:3])}, got {self.shape!r}")
        validation.positive("width", self.width)
        validation.positive("smoothness", self.smoothness)
        validation.nonnegative("noise", self.noise)

    @property
    def num_tasks(self) -> int:
        return int(self.centers.shape[0])

    @property
    def num_clients(self) -> int:
        return int(self.centers.shape[1])

    @property
    def dim(self) -> int:
        return int(self.centers.shape[2])

    def gradient(self, task: int, clients: NDArray[np.int64], theta: Vector, rng: np.random.Generator) -> Vector:
        exact = self._radial_gradient(theta - self.centers[task - 1][clients])
        if self.noise == 0:
            return exact
        draw = rng.standard_normal(theta.shape)
        return np.asarray(exact + self.noise * draw / np.linalg.norm(draw, axis=-1, keepdims=True))

    def task_gradient(self, task: int, theta: Vector) -> Vector:
        return np.asarray(self._radial_gradient(theta[..., None, :] - self.centers[task - 1]).mean(axis=-2))

    def task_loss(self, task: int, theta: Vector) -> Vector:
        square = ((theta[..., None, :] - self.centers[task - 1]) ** 2).sum(axis=-1)
        u = square / self.width**2
        if self.shape == "pseudo_huber":
            value = self.width**2 * (np.sqrt(1 + u) - 1)
        elif self.shape == "welsch":
            value = -(self.width**2) * np.expm1(-u / 2)
        else:
            value = square / 2
        return np.asarray(self.smoothness * value.mean(axis=-1))

    def constants(self) -> Constants:
        if self.shape == "quadratic":
            raise ValueError("shape must have bounded gradients (A1), got 'quadratic'")
        peak = 1.0 if self.shape == "pseudo_huber" else math.exp(-0.5)
        bound = self.smoothness * self.width * peak + self.noise
        implied = Constants(bound, self.smoothness, sigma_local=self.noise).completed(self.num_clients)
        # The gradient is L-Lipschitz in its centre, so distances of centres bound differences of gradients.
        between = np.linalg.norm(self.centers[:, :, None] - self.centers[:, None], axis=-1).mean(axis=-1).max()
        across = np.linalg.norm(self.centers[:, None] - self.centers[None], axis=-1).mean(axis=-1).max()
        return Constants(
            bound,
            self.smoothness,
            sigma_local=self.noise,
            sigma_client=min(implied.need("sigma_client"), self.smoothness * float(between)),
            sigma_task=min(implied.need("sigma_task"), self.smoothness * float(across)),
        )

    def _radial_gradient(self, away: Vector) -> Vector:
        u = (away**2).sum(axis=-1, keepdims=True) / self.width**2
        if self.shape == "pseudo_huber":
            away = away / np.sqrt(1 + u)
        elif self.shape == "welsch":
            away = away * np.exp(-u / 2)
        return np.asarray(self.smoothness * away)


@dataclass(frozen=True)
class LogisticFDIL:
    """f_{i,m}(theta) = mean over samples of log(1 + exp(-y x.theta)), with mini-batches drawn with
    replacement.

    B = max ‖x‖ (never attained); L = max over tasks and clients of the largest eigenvalue of X'X / (4n),
    attained at theta = 0; sigma_L <= max ‖x‖ / sqrt(batch). ``inputs`` is (tasks, clients, n, d),
    ``labels`` the same without d, of -1 and 1.
    """

    inputs: Vector
    labels: Vector
    batch_size: int = 8

    @property
    def num_tasks(self) -> int:
        return int(self.inputs.shape[0])

    @property
    def num_clients(self) -> int:
        return int(self.inputs.shape[1])

    @property
    def dim(self) -> int:
        return int(self.inputs.shape[3])

    @property
    def smoothness(self) -> float:
        size = 4 * self.inputs.shape[2]
        return float(max(np.linalg.eigvalsh(x.T @ x / size)[-1] for task in self.inputs for x in task))

    def gradient(self, task: int, clients: NDArray[np.int64], theta: Vector, rng: np.random.Generator) -> Vector:
        rows = rng.integers(self.inputs.shape[2], size=(*clients.shape, self.batch_size))
        x = self.inputs[task - 1][clients[..., None], rows]
        y = self.labels[task - 1][clients[..., None], rows]
        return _logistic_gradient(x, y, theta)

    def task_gradient(self, task: int, theta: Vector) -> Vector:
        grads = [_logistic_gradient(x, y, theta) for x, y in self._clients(task)]
        return np.asarray(np.mean(grads, axis=0))

    def task_loss(self, task: int, theta: Vector) -> Vector:
        losses = [np.logaddexp(0.0, -y * (theta @ x.T)).mean(axis=-1) for x, y in self._clients(task)]
        return np.asarray(np.mean(losses, axis=0))

    def constants(self) -> Constants:
        bound = float(np.linalg.norm(self.inputs, axis=-1).max())
        known = Constants(bound, self.smoothness, sigma_local=bound / math.sqrt(self.batch_size))
        return known.completed(self.num_clients)

    def _clients(self, task: int) -> Any:
        return zip(self.inputs[task - 1], self.labels[task - 1], strict=True)


def make_problem(
    name: str,
    *,
    num_tasks: int = 2,
    num_clients: int = 8,
    dim: int = 10,
    spread: float = 0.5,
    shift: float = 3.0,
    noise: float = 0.5,
    smoothness: float = 1.0,
    seed: int = 0,
) -> Problem:
    """Make a problem by name: task centres at distance ``shift`` from 0 in random orthogonal directions, and client
    centres at distance ``spread`` from them.

    ``noise`` and ``smoothness`` apply to the radial losses; those of the logistic loss follow from its data.
    """
    if name not in PROBLEMS:
        raise ValueError(f"problem must be one of {', '.join(PROBLEMS)}, got {name!r}")
    rng = np.random.default_rng(seed)
    tasks = shift * np.linalg.qr(rng.standard_normal((dim, num_tasks)))[0].T
    around = rng.standard_normal((num_tasks, num_clients, dim))
    around *= spread / np.linalg.norm(around, axis=-1, keepdims=True)
    centers = tasks[:, None, :] + around
    if name != "logistic":
        return RadialFDIL(centers, name, smoothness=smoothness, noise=noise)  # type: ignore[arg-type]
    inputs = rng.standard_normal((num_tasks, num_clients, 64, dim))
    inputs /= np.maximum(1.0, np.linalg.norm(inputs, axis=-1, keepdims=True) / 2)
    chance = 1 / (1 + np.exp(-np.einsum("kmnd,kmd->kmn", inputs, centers)))
    return LogisticFDIL(inputs, np.where(rng.random(chance.shape) < chance, 1.0, -1.0))


def _logistic_gradient(x: Vector, y: Vector, theta: Vector) -> Vector:
    """x is (..., n, d) with theta (..., d), or (n, d) with any theta."""
    margin = y * (theta @ x.T if x.ndim == 2 else np.einsum("...nd,...d->...n", x, theta))
    weight = -y * np.exp(-np.logaddexp(0.0, margin)) / x.shape[-2]
    return np.asarray(weight @ x if x.ndim == 2 else np.einsum("...n,...nd->...d", weight, x))
