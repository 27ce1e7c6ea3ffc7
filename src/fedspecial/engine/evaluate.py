"""Accuracy on test samples, in evaluation mode, without a task label."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedspecial.core.streams import stream
from fedspecial.data.benchmark import Benchmark, Samples

EVAL_BATCH = 256
"""Samples per forward pass. Sums inside a network may depend on it, so all engines use the same batches."""


@torch.inference_mode()
def count_correct(
    predict: Callable[[Tensor], Tensor],
    samples: Samples,
    benchmark: Benchmark,
    device: torch.device,
    classes: Sequence[int] | None = None,
) -> int:
    """How many samples are classified correctly. With `classes`, only their outputs compete (task-masked accuracy)."""
    correct = torch.zeros((), dtype=torch.int64, device=device)  # read once, so that no batch waits for the device
    for at in range(0, len(samples), EVAL_BATCH):
        x, y = (part[at : at + EVAL_BATCH].to(device) for part in (samples.x, samples.y))
        scores = predict(benchmark.inputs(x))
        if classes is not None:
            scores = _only(scores, classes)
        correct += (scores.argmax(1) == y).sum()
    return int(correct)


def fixed_subset(samples: Samples, cap: int | None, seed: int, domain: str) -> Samples:
    """The same `cap` test samples in every round and every run with this seed."""
    if cap is None or cap >= len(samples):
        return samples
    rows = stream(seed, "evaluation", domain).permutation(len(samples))[:cap]
    return samples.take(torch.from_numpy(rows))


def subset_size(samples: Samples, cap: int | None) -> int:
    """The number of samples of `fixed_subset`."""
    return len(samples) if cap is None else min(cap, len(samples))


def classes_of(samples: Samples) -> list[int]:
    return sorted(set(samples.y.tolist()))


def _only(scores: Tensor, classes: Sequence[int]) -> Tensor:
    masked = torch.full_like(scores, float("-inf"))
    index = torch.tensor([c for c in classes if c < scores.shape[1]], dtype=torch.int64, device=scores.device)
    masked[:, index] = scores[:, index]
    return masked
