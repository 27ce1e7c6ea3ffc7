"""Accuracy on test samples, in evaluation mode, without a task label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedspecial.core.streams import stream
from fedspecial.core.vector import FlatModel
from fedspecial.data.benchmark import Benchmark, Samples
from fedspecial.engine.states import ClientStates

_BATCH = 256


@torch.inference_mode()
def accuracy(model: FlatModel, samples: Samples, benchmark: Benchmark, classes: Sequence[int] | None = None) -> float:
    """Share of samples classified right. With `classes`, only their outputs compete (task-masked accuracy)."""
    model.module.eval()
    right = 0
    for at in range(0, len(samples), _BATCH):
        x, y = (part[at : at + _BATCH].to(model.vector.device) for part in (samples.x, samples.y))
        logits = model.module(benchmark.inputs(x))
        if classes is not None:
            logits = _only(logits, classes)
        right += int((logits.argmax(1) == y).sum())
    return right / len(samples)


def mean_accuracy(
    model: FlatModel,
    vector: Tensor,
    samples: Samples,
    benchmark: Benchmark,
    states: ClientStates | None = None,
    clients: int = 1,
    classes: Sequence[int] | None = None,
) -> float:
    """Accuracy of the global model; with `states`, of each client's own BatchNorm statistics, averaged over clients.

    Clients that never trained share the initial statistics, so they are measured once.
    """
    model.load(vector)
    if states is None:
        return accuracy(model, samples, benchmark, classes)
    total = 0.0
    for client in states.index:
        model.buffers.copy_(states.load(client).tensors["batch_norm"])
        total += accuracy(model, samples, benchmark, classes)
    untrained = clients - len(states.index)
    if untrained:
        model.reset_buffers()
        total += untrained * accuracy(model, samples, benchmark, classes)
    return total / clients


def fixed_subset(samples: Samples, cap: int | None, seed: int, domain: str) -> Samples:
    """The same `cap` test samples in every round and every run with this seed."""
    if cap is None or cap >= len(samples):
        return samples
    rows = stream(seed, "evaluation", domain).permutation(len(samples))[:cap]
    return samples.take(torch.from_numpy(rows))


def _only(logits: Tensor, classes: Sequence[int]) -> Tensor:
    masked = torch.full_like(logits, float("-inf"))
    index = torch.tensor([c for c in classes if c < logits.shape[1]], dtype=torch.int64)
    masked[:, index] = logits[:, index]
    return masked
