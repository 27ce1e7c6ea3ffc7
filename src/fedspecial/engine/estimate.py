"""The constants of the theory, estimated during a run (``estimate: true``).

Per round, at the model that is broadcast: the noise of a batch σ_L, the spread between clients σ_G, the cosine with the
gradient at the end of the previous task, and a secant of the gradient from the anchor to the model. Per task, at its
end: the gradient's norm and the largest curvature. The largest gradient of the local steps is measured in ``local``.

All of them refer to the loss of the run's objective in training mode and to the trainable weights. Random draws come
from the stream "estimate" and every engine loads the model again before it is used, so estimating does not change the
run. Besides the events, a resumed run needs one vector, ``estimate/end_gradient`` in the server's state.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedspecial.core.events import ConstantsEstimated, Estimate
from fedspecial.core.streams import stream, torch_stream
from fedspecial.engine.aggregation.mean import norm
from fedspecial.methods.base import LocalData

if TYPE_CHECKING:
    from fedspecial.engine.run import Run

# Chosen so that all estimates together cost a ResNet-18 run less than 15 % (benchmarks/certificate_overhead.py).
CLIENTS_PER_ROUND = 2
CLIENTS_AT_TASK_END = 8
POWER_ITERATIONS = 4

END_GRADIENT = "estimate/end_gradient"


def at_broadcast(run: Run, task: int, round: int, clients: Sequence[int]) -> ConstantsEstimated:
    """Estimates at the model that is broadcast, from two independent batches of up to two of the sampled clients."""
    began = time.perf_counter()
    probe = Probe(run, task, round)
    spread, cosines = GradientSpread(), Cosines(run.server.tensors.get(END_GRADIENT))
    found: dict[str, Estimate] = {}
    one, two = probe.empty(), probe.empty()
    for number, client in enumerate(probe.some(clients, CLIENTS_PER_ROUND)):
        first, second = probe.batches(client, 2)
        probe.gradient(run.vector, first, out=one)
        if number == 0:
            found |= _secant(run, partial(probe.gradient, batch=first, out=two), one)
        probe.gradient(run.vector, second, out=two)
        spread.add(one, two)
        cosines.add(one.add_(two))
    found |= spread.estimates(run.federation.clients) | cosines.estimates()
    return ConstantsEstimated(task, round, _finite(found), time.perf_counter() - began)


def at_task_end(run: Run, task: int) -> ConstantsEstimated:
    """Gradient and curvature at the end of the task; the gradient is stored for the next task."""
    began = time.perf_counter()
    probe = Probe(run, task, None)
    total, room, count, first = probe.empty(), probe.empty(), 0, None
    for client in probe.some(range(run.federation.clients), CLIENTS_AT_TASK_END):
        (batch,) = probe.batches(client, 1)
        total.add_(probe.gradient(run.vector, batch, out=room))
        first, count = batch if first is None else first, count + 1
    found: dict[str, Estimate] = {}
    if first is not None:
        total /= count
        found["smoothness"] = power_iteration(partial(probe.gradient, batch=first), run.vector, probe)
        # Where the head grows, the old loss over new outputs is another function, so this gradient is not comparable.
        if run.federation.benchmark.incremental == "domain" and math.isfinite(norm(total)):
            note = "of f_i at the end of task i, one batch a client; the batches' noise counts in, so it errs upwards"
            found["end_grad_norm"] = Estimate(norm(total), "plugin", count, note)
            run.server.tensors[END_GRADIENT] = total
    return ConstantsEstimated(task, None, _finite(found), time.perf_counter() - began)


@dataclass
class Probe:
    """Gradients of the loss on batches drawn from a stream of their own."""

    run: Run
    task: int
    round: int | None

    def __post_init__(self) -> None:
        self._slots = [slot for slot in self.run.model.layout.slots if slot.kind == "weight"]
        self._smallest = 2 if self.run.model.has_batch_norm else 1

    def _keys(self, *more: int | str) -> tuple[int | str, ...]:
        return (self.task, "end" if self.round is None else self.round, *more)

    def some(self, clients: Sequence[int], count: int) -> list[int]:
        """At most `count` of the clients that can make a batch, drawn again in every round."""
        order = stream(self.run.config.seed, "estimate", *self._keys()).permutation(len(clients))
        rows, size = self.run.federation.rows, self.run.config.batch_size
        able = (clients[at] for at in order if min(size, len(rows(self.task, clients[at]))) >= self._smallest)
        return sorted(itertools.islice(able, count))

    def batches(self, client: int, count: int) -> list[Tensor]:
        """Independent batches of one client, each drawn as the first of an epoch is."""
        rows, size = self.run.federation.rows(self.task, client), self.run.config.batch_size
        rng = stream(self.run.config.seed, "estimate", *self._keys(client))
        return [torch.from_numpy(rows[rng.permutation(len(rows))[:size]]) for _ in range(count)]

    def empty(self) -> Tensor:
        """Memory for a gradient; reuse it, since allocating a large one costs more than filling it."""
        return torch.zeros_like(self.run.model.weights)

    def gradient(self, point: Tensor, batch: Tensor, out: Tensor | None = None) -> Tensor:
        """∇ of the mean loss on these rows at a model (or its weights), with the same random numbers in every call."""
        model, benchmark = self.run.model, self.run.federation.benchmark
        samples = self.run.federation.domain(self.task).train
        data = LocalData(samples.x, samples.y, batch.numpy(), benchmark.inputs, model.vector.device)
        x, y = data.batch(batch)
        model.load(point)
        model.train()
        with torch_stream(self.run.config.seed, "estimate", "torch", *self._keys()):
            loss = self.run.objective.loss(model.module, (model.converted(x), y))
            parts = torch.autograd.grad(loss, model.trainable, allow_unused=True, materialize_grads=True)
        flat = self.empty() if out is None else out
        for slot, part in zip(self._slots, parts, strict=True):
            slot.view(flat).copy_(part)
        return flat

    def direction(self) -> Tensor:
        """A random direction in the trainable weights."""
        rng = stream(self.run.config.seed, "estimate", "direction", *self._keys())
        flat = self.empty()
        for slot in self._slots:
            slot.view(flat).copy_(torch.from_numpy(rng.standard_normal(slot.shape, dtype="float32")))
        return flat


@dataclass
class GradientSpread:
    """σ_L and σ_G from pairs of gradients (one pair a client), summed so that memory does not grow with clients."""

    within: list[float] = field(default_factory=list)
    cross: list[float] = field(default_factory=list)
    sums: tuple[Tensor, Tensor] | None = None

    def add(self, one: Tensor, two: Tensor) -> None:
        self.within.append(norm(one - two) ** 2 / 2)
        self.cross.append(float(torch.dot(one, two)))
        if self.sums is None:
            self.sums = one.clone(), two.clone()
        else:
            self.sums[0].add_(one)
            self.sums[1].add_(two)

    def estimates(self, clients: int) -> dict[str, Estimate]:
        """σ_G² is mean⟨g_m, g'_m⟩ − ⟨ḡ, ḡ'⟩: batch noise drops out of the products; for some of all clients × the
        factor that makes the square unbiased."""
        count = len(self.within)
        if self.sums is None:
            return {}
        note = "of one batch; its square is unbiased"
        found = {"sigma_local": Estimate(math.sqrt(sum(self.within) / count), "plugin", count, note)}
        if count > 1:
            square = sum(self.cross) / count - float(torch.dot(*self.sums)) / count**2
            square *= count / (count - 1) * (clients - 1) / clients
            note = "root mean square over clients at the model that is broadcast"
            found["sigma_client"] = Estimate(math.sqrt(max(square, 0.0)), "plugin", count, note)
        return found


@dataclass
class Cosines:
    """The smallest cosine between the old gradient and the clients' gradients; zero gradients count as aligned."""

    old: Tensor | None
    values: list[float] = field(default_factory=list)

    def add(self, gradient: Tensor) -> None:
        if self.old is not None and (scale := norm(self.old) * norm(gradient)) > 0:
            self.values.append(float(torch.dot(self.old, gradient)) / scale)

    def estimates(self) -> dict[str, Estimate]:
        if not self.values:
            return {}
        note = "cosine with the previous task's gradient at its end; both are of batches, whose noise lowers it"
        return {"alignment": Estimate(max(-1.0, min(1.0, *self.values)), "upper", len(self.values), note)}


def _secant(run: Run, gradient: Callable[[Tensor], Tensor], here: Tensor) -> dict[str, Estimate]:
    """‖∇f(θ) − ∇f(a)‖ / ‖θ − a‖ on one batch: the curvature between the anchor and the model."""
    weights, anchor = run.model.layout.num_weights, run.server.anchor
    if anchor is None or (path := norm(run.server.theta[:weights] - anchor[:weights])) == 0:
        return {}
    change = norm(gradient(anchor[:weights]).sub_(here))
    return {"smoothness": Estimate(change / path, "plugin", 1, "secant from the anchor to the model, on one batch")}


def power_iteration(gradient: Callable[[Tensor], Tensor], vector: Tensor, probe: Probe) -> Estimate:
    """The largest |eigenvalue| of the Hessian on one batch, from below: ‖Hv‖ after a few steps of v ← Hv/‖Hv‖.

    Hv is (∇f(θ + hv) − ∇f(θ − hv)) / 2h, with an h that float32 can resolve.
    """
    direction = probe.direction()
    center = vector[: len(direction)]
    step, value = 1e-3 * max(1.0, norm(center)), norm(direction)
    for _ in range(POWER_ITERATIONS):
        direction = direction.mul_(step / value)
        image = gradient(center + direction).sub_(gradient(center - direction)).div_(2 * step)
        value, direction = norm(image), image
        if not 0 < value < math.inf:
            break
    note = "largest curvature of one batch at the task's end"
    return Estimate(value, "plugin", POWER_ITERATIONS, note)


def _finite(found: dict[str, Estimate]) -> dict[str, Estimate]:
    """A model that diverged has no constants."""
    return {name: estimate for name, estimate in found.items() if math.isfinite(estimate.value)}
