"""MFCL: replay from a generator that the server distils from the model alone (Babakniya et al., NeurIPS 2023).

At the end of task i the server goes on training the generator G against the frozen F = θ_i,
with X̃ = G(z), z ~ N(0, I), o = F(X̃):

    L_G = CE(o/τ, argmax o) + w_div·L_div + w_bn·L_BN + w_pr·L_pr

    L_div = 1 + Σ_c p̄_c ln p̄_c / ln C     p̄: mean of softmax(o) over the batch; 0 when it meets all classes alike
    L_BN  = mean over BatchNorm layers of KL(N(running) ‖ N(batch)), the batch being the layer's input; 0 without any
    L_pr  = mean (X̃ − smooth(X̃))²

From the second task on, clients join fresh images of G to each batch (x, y): Z = [x; X̃], ỹ = argmax F(X̃), where F is
now the previous task's model with extractor h_{i−1} and head W_{i−1}:

    L = CE(W h(x), y) + w_ft·CE(W sg(h(Z)), [y; ỹ]) + w_kd·mean_Z ‖W_{i−1}(h(Z) − h_{i−1}(Z))‖² / C_{i−1}

sg stops the gradient, so the second term moves the head alone, and the third moves the extractor alone.
θ_{i−1} and G: the payloads "previous" and "generator", downloaded once a task.
With w_ft = w_kd = 0 nothing is replayed, no generator is trained and this is FedAvg.

The original is class-incremental: the first term takes a new class's sample among the new classes only, the third
term knows the old ones. Where all tasks have the same labels no class is new, and both are over all of them.
The weights are those of SPECIAL's authors; the original has w_div 1, w_bn 50, w_pr 0.001, w_ft 1, w_kd 0.1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, ClassVar, cast

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm

from fedspecial.core.messages import Broadcast, ServerState
from fedspecial.core.streams import torch_stream
from fedspecial.core.vector import FlatModel
from fedspecial.errors import InputError
from fedspecial.methods.base import ClientContext, Method, ProblemSpec, ServerContext
from fedspecial.models.classifier import Classifier
from fedspecial.models.generators import data_free_generator

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Mfcl(Method):
    """Replay images of a generator that the server trains from the global model alone, without data.

    L = CE(W h(x), y) + w_ft·CE(W sg(h(Z)), [y; ỹ]) + w_kd·mean ‖W_{i−1}(h(Z) − h_{i−1}(Z))‖² / C_{i−1}

    Args:
        w_div: Weight of class diversity in the generator's loss, ≥ 0.
        w_bn: Weight of the BatchNorm statistics in the generator's loss, ≥ 0.
        w_pr: Weight of the smoothness of images in the generator's loss, ≥ 0.
        w_ft: Weight of fine-tuning the head on real and generated images, ≥ 0; FedAvg at 0 with w_kd=0.
        w_kd: Weight of feature distillation, ≥ 0.
        tau: Temperature of the generator's classification loss, > 0.
        iterations: Training steps of the generator at the end of a task, ≥ 1.
        generator_lr: Learning rate of the generator, > 0.
        synthetic: Generated images per batch, at the server and in each step of a client, ≥ 1.
        generator_width: Channels of the generator, ≥ 2.
        latent: Length of the generator's noise vector, ≥ 1.

    Example:
        ``fedspecial.run("digits-shift", method=Mfcl(w_ft=0.2, w_kd=0.2))``

    Reference:
        Babakniya et al., A Data-Free Approach to Mitigate Catastrophic Forgetting in Federated Class Incremental
        Learning for Vision Tasks, NeurIPS 2023.
    """

    name: ClassVar[str] = "mfcl"
    needs_only_sum: ClassVar[bool] = True
    needs_class_scores: ClassVar[bool] = True
    fedavg_when: ClassVar = {"w_ft": 0.0, "w_kd": 0.0}
    kinds: ClassVar = ("image",)
    memory_excluded: ClassVar = frozenset({"network/generator"})
    """The network has the same weights as the payload "generator"."""

    w_div: Annotated[Weight, Field(description="weight of class diversity in the generator's loss")] = 0.5
    w_bn: Annotated[Weight, Field(description="weight of BatchNorm statistics in the generator's loss")] = 1.0
    w_pr: Annotated[Weight, Field(description="weight of smooth images in the generator's loss")] = 0.01
    w_ft: Annotated[Weight, Field(description="weight of fine-tuning the head on real and generated images")] = 0.2
    w_kd: Annotated[Weight, Field(description="weight of feature distillation from the previous model")] = 0.2
    tau: Annotated[Positive, Field(description="temperature of the generator's classification loss")] = 1000.0
    iterations: Annotated[Count, Field(description="training steps of the generator at the end of a task")] = 100
    generator_lr: Annotated[Positive, Field(description="learning rate of the generator")] = 1e-3
    synthetic: Annotated[Count, Field(description="generated images per batch, at the server and at a client")] = 128
    generator_width: Annotated[int, Field(ge=2, description="channels of the generator")] = 128
    latent: Annotated[Count, Field(description="length of the generator's noise vector")] = 1000

    @property
    def replays(self) -> bool:
        """Whether any term of the loss uses generated images."""
        return self.w_ft > 0 or self.w_kd > 0

    def check_problem(self, problem: ProblemSpec) -> None:
        super().check_problem(problem)
        if problem.features is None:
            raise InputError("method=mfcl: needs a model with `features` and, on top of them, a linear `fc`")

    def networks(self, problem: ProblemSpec) -> dict[str, nn.Module]:
        return {"generator": data_free_generator(problem.input_shape, self.generator_width, self.latent)}

    # --- server half ------------------------------------------------------------------------------------------

    def begin_task(self, server: ServerState, context: ServerContext) -> None:
        if context.task > 1 and self.replays:
            server.models["previous"] = server.theta.clone()

    def broadcast(self, server: ServerState, client: int, task: int, round: int) -> Broadcast:
        message = super().broadcast(server, client, task, round)
        if "previous" in server.models:
            message.payloads = {"generator": server.tensors["generator"], "previous": server.models["previous"]}
        return message

    def end_task(self, server: ServerState, context: ServerContext) -> None:
        if not self.replays:
            return
        model, generator = context.model, context.networks["generator"]
        model.load(server.theta)
        generator.load(server.tensors["generator"])
        with torch_stream(context.seed, "mfcl", context.task), _frozen(model):
            self._distil(model.module, generator, context.num_classes)
        server.tensors["generator"] = generator.vector.clone()

    def _distil(self, classifier: nn.Module, generator: FlatModel, classes: int) -> None:
        """Train the generator against a frozen classifier, with a new optimiser."""
        generator.module.train()
        optimizer = torch.optim.Adam(generator.trainable, lr=self.generator_lr)
        with _statistics_gaps(classifier) as gaps:
            for _ in range(self.iterations):
                gaps.clear()
                images = generator.module(torch.randn(self.synthetic, self.latent).to(generator.vector.device))
                logits = classifier(images)[:, :classes]
                loss = self._generator_loss(images, logits, gaps)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        optimizer.zero_grad()

    def _generator_loss(self, images: Tensor, logits: Tensor, gaps: list[Tensor]) -> Tensor:
        """L_G = CE(o/τ, argmax o) + w_div·L_div + w_pr·L_pr + w_bn·mean(gaps), without the last if there are none."""
        loss = cross_entropy(logits / self.tau, logits.argmax(1))
        loss = loss + self.w_div * imbalance(logits) + self.w_pr * roughness(images)
        return loss + self.w_bn * torch.stack(gaps).mean() if gaps else loss

    # --- client half ------------------------------------------------------------------------------------------

    def begin_round(self, context: ClientContext) -> None:
        payloads = context.broadcast.payloads
        if "previous" not in payloads:
            return
        context.networks["generator"].load(payloads["generator"])
        context.networks["generator"].module.eval()
        previous = FlatModel(copy.deepcopy(context.model.module))
        previous.load(payloads["previous"])
        previous.module.eval()
        context.scratch["previous"] = previous
        if self.w_kd > 0:
            context.scratch["features"] = previous.vector.new_empty(len(context.data), context.problem.features or 0)
            context.scratch["computed"] = np.zeros(len(context.data), dtype=bool)

    def loss(self, context: ClientContext, x: Tensor, y: Tensor) -> Tensor:
        if "previous" not in context.scratch:
            return super().loss(context, x, y)
        module, old = cast(Classifier, context.model.module), context.old_classes
        previous = cast(Classifier, context.scratch["previous"].module)
        with torch.no_grad():
            noise = torch.randn(self.synthetic, self.latent, generator=context.generator)
            images = context.networks["generator"].module(noise.to(x.device))
            old_features = previous.features(images)
            labels = previous.fc(old_features)[:, :old].argmax(1)
        features = module.features(torch.cat([x, images]))
        loss = cross_entropy(_against_rivals(module.fc(features[: len(x)]), y, old), y)
        if self.w_ft > 0:
            loss = loss + self.w_ft * cross_entropy(module.fc(features.detach()), torch.cat([y, labels]))
        if self.w_kd > 0:
            moved = features - torch.cat([self._own_features(context, x), old_features])
            # ‖·‖² is a sum over C_{i−1} outputs, so divided by C_{i−1} it is their mean. The head's bias cancels.
            loss = loss + self.w_kd * functional.linear(moved, previous.fc.weight[:old].detach()).square().mean()
        return loss

    @torch.no_grad()
    def _own_features(self, context: ClientContext, x: Tensor) -> Tensor:
        """h_{i−1}(x), computed once a round for each of the client's samples."""
        known, computed, where = context.scratch["features"], context.scratch["computed"], context.positions
        # Recorded in NumPy: a look at the features themselves would wait for the device in every step.
        if not computed[where.numpy()].all():
            known[where] = cast(Classifier, context.scratch["previous"].module).features(x).to(known.dtype)
            computed[where.numpy()] = True
        own: Tensor = known[where]
        return own


def imbalance(logits: Tensor) -> Tensor:
    """L_div ∈ [0, 1]: 0 when the batch meets all classes alike, 1 when it meets one only."""
    share = logits.softmax(1).mean(0)
    # A share that underflows to 0 would have an infinite gradient.
    share = share.clamp_min(torch.finfo(share.dtype).tiny)
    return 1 + (share * share.log()).sum() / math.log(max(2, len(share)))


def statistics_gap(layer: _BatchNorm, inputs: Tensor) -> Tensor:
    """KL(N(running) ‖ N(batch)) ≥ 0, the mean over channels, with variances as the layer uses them (plus its eps)."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    places = [dim for dim in range(inputs.dim()) if dim != 1]
    variance, mean = torch.var_mean(inputs, places, correction=0)
    variance, running = variance + layer.eps, layer.running_var + layer.eps
    shift = (layer.running_mean - mean).square()
    return 0.5 * ((variance / running).log() + (running + shift) / variance - 1).mean()


def roughness(images: Tensor) -> Tensor:
    """L_pr: the mean squared difference between images and their copies smoothed by a 5×5 Gaussian."""
    distances = torch.arange(-2.0, 3.0, device=images.device)
    bell = torch.exp(-((distances / 2) ** 2))
    kernel = torch.outer(bell, bell) / bell.sum() ** 2
    flat = images.flatten(0, 1).unsqueeze(1)
    smooth = functional.conv2d(functional.pad(flat, (2, 2, 2, 2), mode="reflect"), kernel[None, None])
    return functional.mse_loss(smooth, flat)


def _against_rivals(logits: Tensor, y: Tensor, old: int) -> Tensor:
    """Where the label is new, the logits of the new classes alone."""
    if logits.shape[1] == old:
        return logits
    is_old = torch.arange(logits.shape[1], device=y.device) < old
    return logits.masked_fill(is_old & (y >= old).unsqueeze(1), -math.inf)


@contextmanager
def _frozen(model: FlatModel) -> Iterator[None]:
    """In evaluation mode and without gradients for its weights."""
    model.module.eval()
    for weight in model.trainable:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in model.trainable:
            weight.requires_grad_(True)


@contextmanager
def _statistics_gaps(module: nn.Module) -> Iterator[list[Tensor]]:
    """A list to which each pass through the module adds the gap of every BatchNorm layer."""
    gaps: list[Tensor] = []
    handles = [
        part.register_forward_pre_hook(lambda layer, inputs: gaps.append(statistics_gap(layer, inputs[0])))
        for part in module.modules()
        if isinstance(part, _BatchNorm) and part.running_mean is not None
    ]
    try:
        yield gaps
    finally:
        for handle in handles:
            handle.remove()
