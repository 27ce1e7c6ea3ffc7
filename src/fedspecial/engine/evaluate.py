"""Metrics on test samples, in evaluation mode, without a task label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from fedspecial.core.streams import stream
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.samples import Samples
from fedspecial.objectives.base import Objective, Scores, Scoring, Summary, Value

EVAL_BATCH = 256
"""Samples per forward pass. Sums inside a network may depend on it, so all engines use the same batches."""


@torch.inference_mode()
def summarize(
    predict: Callable[[Tensor], Tensor],
    samples: Samples,
    benchmark: Benchmark,
    device: torch.device,
    scoring: Scoring,
    classes: Sequence[int] | None = None,
) -> Summary:
    """What the metrics need of the predictions. With `classes`, only their outputs compete (task-masked accuracy)."""
    parts = []  # read at the end, so that no batch waits for the device
    for at in range(0, len(samples), EVAL_BATCH):
        x, y = (part[at : at + EVAL_BATCH].to(device) for part in (samples.x, samples.y))
        outputs = predict(benchmark.inputs(x))
        parts.append(scoring.summarize(outputs if classes is None else _only(outputs, classes), y))
    return tuple(part.cpu() for part in scoring.merge(parts))


def main_values(objective: Objective, found: Sequence[Scores | None]) -> list[float | None]:
    """The main metric of each domain; `Scoring.scores` has checked that it is one number."""
    name = objective.main.name
    return [None if scores is None else cast("float | None", scores[name]) for scores in found]


def further_metrics(objective: Objective, found: Sequence[Scores | None]) -> dict[str, list[Value]]:
    """All metrics beside the main one: name → value on each domain, None where it is not defined."""
    names = dict.fromkeys(name for scores in found if scores is not None for name in scores)
    names.pop(objective.main.name, None)
    return {name: [None if scores is None else scores.get(name) for scores in found] for name in names}


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


def majority_share(labels: Tensor) -> float | None:
    """The accuracy of always answering the most frequent class; None without class labels."""
    if labels.dim() != 1 or labels.is_floating_point() or not len(labels):
        return None
    return int(torch.unique(labels, return_counts=True)[1].max()) / len(labels)
