"""SR-FDIL's cache: which samples a client keeps, and how many of each domain and class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize, one_hot, softmax

if TYPE_CHECKING:
    from fedspecial.core.vector import FlatModel
    from fedspecial.methods.base import LocalData

BATCH = 32


class Pool(NamedTuple):
    """A client's candidates: its cached samples, followed by its samples of the task that ends.

    domain: the task of a sample, counted from 1
    """

    x: Tensor
    y: Tensor
    domain: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor) -> Pool:
        return Pool(self.x[rows], self.y[rows], self.domain[rows])


@torch.inference_mode()
def features(module: nn.Module, data: LocalData, pool: Pool) -> Tensor:
    """h(x), each of length one (or zero)."""
    parts = [module.features(data.inputs(x.to(data.device))) for x in torch.split(pool.x, 256)]  # type: ignore[operator]
    return normalize(torch.cat(parts)).cpu()


def class_means(h: Tensor, pool: Pool, tasks: int, classes: int) -> tuple[Tensor, Tensor]:
    """μ_{d,y} and the number of samples in each mean: (tasks, classes, features) and (tasks, classes)."""
    group = (pool.domain - 1) * classes + pool.y
    counts = torch.bincount(group, minlength=tasks * classes)
    sums = torch.zeros(tasks * classes, h.shape[1], dtype=torch.float64).index_add_(0, group, h.double())
    means = (sums / counts.clamp(min=1)[:, None]).float()
    return means.view(tasks, classes, -1), counts.view(tasks, classes)


def prototype_scores(h: Tensor, pool: Pool, own: Tensor, shared: Tensor, lam: float) -> Tensor:
    """S = λ·s_rep + (1 − λ)·s_col: how near a sample is to its class's mean at the client and in the federation."""
    s_rep, s_col = (cosine_similarity(h, means[pool.domain - 1, pool.y]) for means in (own, shared))
    return lam * scaled(s_rep) + (1 - lam) * scaled(s_col)


def scaled(values: Tensor) -> Tensor:
    """To [0, 1]; ½ where all are the same."""
    if len(values) == 0:
        return values
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.full_like(values, 0.5)


def gradient_importance(
    model: FlatModel, data: LocalData, pool: Pool, lam: float, *, lr: float, passes: int, rng: np.random.Generator
) -> Tensor:
    """Re-Fed's I(x) = Σ_p (1/p)·‖∇ℓ_v(x)‖ of a personal model v, with the last layer's gradient (p − y)⊗[h; 1].

    v starts at the global model θ and follows ∇CE + q·(v − θ), q = (1 − λ)/(2λ): λ = 1 is the client alone, with
    λ = 0 the model stays θ. The pull is taken implicitly, so that no q is too large for the rate. BatchNorm keeps θ's
    statistics.
    """
    theta, importance = model.weights.clone(), torch.zeros(len(pool))
    blend = lr * (1 - lam) / (2 * lam + lr * (1 - lam))
    for number in range(1, passes + 1):
        for rows in torch.split(torch.from_numpy(rng.permutation(len(pool))), BATCH):
            x, y = data.inputs(pool.x[rows].to(data.device)), pool.y[rows].to(data.device)
            h: Tensor = model.module.features(x)  # type: ignore[operator]
            logits: Tensor = model.module.fc(h)  # type: ignore[operator]
            importance[rows] += last_layer_norms(h.detach(), logits.detach(), y).cpu() / number
            gradients = torch.autograd.grad(cross_entropy(logits, y), model.trainable, allow_unused=True)
            for parameter, gradient in zip(model.trainable, gradients, strict=True):
                if gradient is not None:
                    parameter.detach().sub_(gradient, alpha=lr)
            model.weights.lerp_(theta, blend)
    return importance


def last_layer_norms(h: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """‖∂ℓ(x)/∂[W b]‖ of each sample: ‖softmax − onehot‖·‖[h; 1]‖."""
    error = softmax(logits, 1) - one_hot(y, logits.shape[1])
    norms: Tensor = error.norm(dim=1) * (1 + h.square().sum(1)).sqrt()
    return norms


def quotas(budget: int, sizes: Sequence[int]) -> list[int]:
    """Split the budget evenly; what one group cannot use goes to the others, and a remainder to the first groups."""
    given, left = [0] * len(sizes), min(budget, sum(sizes))
    while left:
        wanting = [i for i, size in enumerate(sizes) if given[i] < size]
        step = max(1, min(left // len(wanting), *(sizes[i] - given[i] for i in wanting)))
        for i in wanting[:left]:
            given[i] += step
            left -= step
    return given


def best_of_each(scores: Tensor, pool: Pool, budget: int) -> Tensor:
    """The rows with the highest scores, evenly many of each domain and, in a domain, of each of its classes."""
    kept = []
    domains = [torch.nonzero(pool.domain == d).flatten() for d in sorted(set(pool.domain.tolist()))]
    for rows, share in zip(domains, quotas(budget, [len(rows) for rows in domains]), strict=True):
        labels = pool.y[rows]
        classes = [rows[labels == y] for y in sorted(set(labels.tolist()))]
        for members, count in zip(classes, quotas(share, [len(members) for members in classes]), strict=True):
            kept.append(members[best(scores[members], count)])
    return torch.cat(kept).sort().values if kept else torch.empty(0, dtype=torch.int64)


def best(scores: Tensor, count: int) -> Tensor:
    """Where the highest scores are; of equal ones the first."""
    return torch.argsort(scores, descending=True, stable=True)[:count]
