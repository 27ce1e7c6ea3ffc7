"""One step on FedCIL's pair of generator and critic, the same for a client and for the server.

    L_D = w·R(x, y) + (1 − w)·R(x_r, y_r) + BCE(D_rf(x_f), 0) + CE(D_cls(x_f), v_f) + w_con·agreement
    L_G = R(x_f, v_f)
    R(x, y) = BCE(D_rf(x), 1) + CE(D_cls(x), y)

x, y: `real` · x_r, y_r: `replayed` · x_f = G(z, v_f): the generator's own images · w: `weight`. All images are in
[−1, 1]. The critic normalises nothing, so it looks at all of them in one batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy, interpolate, kl_div, log_softmax, softplus

from fedspecial.core.vector import FlatModel
from fedspecial.methods.context import ProblemSpec


class Pictures(NamedTuple):
    images: Tensor
    labels: Tensor


class Judged(NamedTuple):
    """What the critic says about a batch, D_rf and D_cls, and the labels that its images have or were made for."""

    looks_real: Tensor
    classes: Tensor
    labels: Tensor


class Agreement(NamedTuple):
    """What the critic is to see alike: w_con·[KL(p(x_s) ‖ p(x)) + KL(p(u_s) ‖ p(u)) + CE(D_cls(u_s), v)].

    p is the softmax of D_cls, x_s and u_s are the frozen downloaded generator's images, u the own generator's.

    rows:    which of the real images x have counterparts x_s, made for the same labels
    matched: x_s
    theirs:  u_s, made for labels v
    own:     u, made for the same labels
    """

    weight: float
    rows: Tensor
    matched: Tensor
    theirs: Pictures
    own: Tensor


@dataclass(frozen=True)
class Scale:
    """Between images as the classifier takes them (normalised) and as the GAN does (in [−1, 1], of its own size)."""

    shape: tuple[int, ...]
    gan_shape: tuple[int, ...]
    factor: Tensor
    shift: Tensor

    @staticmethod
    def of(problem: ProblemSpec, gan_shape: tuple[int, ...], device: torch.device | None = None) -> Scale:
        """u = 2·(x·std + mean) − 1 = factor·x + shift."""
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, 1, 1)
            for values in (problem.mean, problem.std)
        )
        return Scale(problem.input_shape, gan_shape, 2 * std, 2 * mean - 1)

    def to_gan(self, x: Tensor) -> Tensor:
        return _resized(x * self.factor.to(x.device) + self.shift.to(x.device), self.gan_shape)

    def to_classifier(self, images: Tensor) -> Tensor:
        images = _resized(images, self.shape)
        return (images - self.shift.to(images.device)) / self.factor.to(images.device)


@dataclass
class Gan:
    """Generator and critic under training, each with an optimiser of its own, and the stream they draw from."""

    generator: FlatModel
    critic: FlatModel
    rng: torch.Generator
    adams: dict[str, Adam] = field(default_factory=dict)

    @staticmethod
    def of(
        networks: Mapping[str, FlatModel], rng: torch.Generator, lr: float, betas: tuple[float, float], decay: float
    ) -> Gan:
        gan = Gan(networks["generator"], networks["critic"], rng)
        for name, network in (("generator", gan.generator), ("critic", gan.critic)):
            network.module.train()
            gan.adams[name] = Adam(network.trainable, lr, betas, decay)
        return gan

    def step(
        self,
        real: Pictures,
        replayed: Pictures | None,
        labels: Tensor,
        weight: float,
        agreement: Agreement | None = None,
    ) -> None:
        """Adam on D, then on G; `labels` are those of the images that the generator makes."""
        noise, labels = self.noise(len(labels)), labels.to(self.generator.vector.device)
        fakes = Pictures(self.generator.module(noise, labels), labels)
        self._descend("critic", self.critic, self._critic_loss(real, replayed, fakes, weight, agreement))
        looks_real, classes = self.critic.module(fakes.images)
        self._descend("generator", self.generator, taken_for_real(Judged(looks_real, classes, labels)))

    def noise(self, count: int) -> Tensor:
        """z ~ N(0, 1), drawn where the stream is and moved to where the generator is."""
        latent = int(self.generator.module.latent)  # type: ignore[arg-type]
        return torch.randn(count, latent, generator=self.rng).to(self.generator.vector.device)

    def frozen(self, vector: Tensor, labels: Tensor) -> Pictures:
        """G(z, v) of a generator with these weights, in evaluation mode, so that no image depends on the others."""
        module, labels = self.generator.module.eval(), labels.to(vector.device)
        weights = dict(self.generator.layout.named(vector))
        with torch.no_grad():
            images: Tensor = functional_call(module, weights, (self.noise(len(labels)), labels))
        module.train()
        return Pictures(images, labels)

    def _critic_loss(
        self, real: Pictures, replayed: Pictures | None, fakes: Pictures, weight: float, agreement: Agreement | None
    ) -> Tensor:
        seen = [real.images, fakes.images.detach()]
        if replayed is not None:
            seen.append(replayed.images)
        if agreement is not None:
            seen += [agreement.matched, agreement.theirs.images, agreement.own]
        lengths = [len(images) for images in seen]
        looks_real, classes = (part.split(lengths) for part in self.critic.module(torch.cat(seen)))
        again = None if replayed is None else Judged(looks_real[2], classes[2], replayed.labels)
        new, made = (Judged(looks_real[i], classes[i], batch.labels) for i, batch in enumerate((real, fakes)))
        loss = critic_loss(new, again, made, weight)
        if agreement is not None:
            matched, theirs, own = classes[-3:]
            pairs = matched, classes[0][agreement.rows]
            loss = loss + agreement.weight * disagreement(pairs, theirs, own, agreement.theirs.labels)
        return loss

    def _descend(self, name: str, network: FlatModel, loss: Tensor) -> None:
        """One step. Asking for these gradients alone spares those of the other network."""
        self.adams[name].step(torch.autograd.grad(loss, network.trainable))


class Adam:
    """Adam with weight decay as part of the gradient. Torch's own takes longer to import than a small run to play.

    moments: running means of the gradient and of its square, all weights after one another
    """

    def __init__(self, weights: Sequence[Tensor], lr: float, betas: tuple[float, float], decay: float) -> None:
        self.weights, self.lr, self.betas, self.decay = [weight.detach() for weight in weights], lr, betas, decay
        self.sizes = [weight.numel() for weight in weights]
        self.moments = torch.zeros(2, sum(self.sizes), device=weights[0].device)
        self.steps = 0

    def step(self, gradients: Sequence[Tensor]) -> None:
        self.steps += 1
        pairs = zip(gradients, self.weights, strict=True)
        gradient = torch.cat([torch.add(slope, weight, alpha=self.decay).flatten() for slope, weight in pairs])
        (mean, square), (first, second) = self.moments, self.betas
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        change = square.div(1 - second**self.steps).sqrt_().add_(1e-8)
        torch.div(mean, change, out=change).mul_(self.lr / (1 - first**self.steps))
        for weight, part in zip(self.weights, torch.split(change, self.sizes), strict=True):
            weight.sub_(part.view_as(weight))


def taken_for_real(batch: Judged) -> Tensor:
    """R = BCE(D_rf, 1) + CE(D_cls, y), where BCE(s, 1) = ln(1 + e^{−s}) and BCE(s, 0) = ln(1 + e^s)."""
    return softplus(-batch.looks_real).mean() + cross_entropy(batch.classes, batch.labels)


def critic_loss(real: Judged, replayed: Judged | None, fakes: Judged, weight: float) -> Tensor:
    """L_D without agreement: w·R(real) + (1 − w)·R(replayed) + BCE(D_rf(x_f), 0) + CE(D_cls(x_f), v_f)."""
    loss = taken_for_real(real)
    if replayed is not None:
        loss = weight * loss + (1 - weight) * taken_for_real(replayed)
    return loss + softplus(fakes.looks_real).mean() + cross_entropy(fakes.classes, fakes.labels)


def disagreement(pairs: tuple[Tensor, Tensor], theirs: Tensor, own: Tensor, labels: Tensor) -> Tensor:
    """KL(p(x_s) ‖ p(x)) + KL(p(u_s) ‖ p(u)) + CE(D_cls(u_s), v), all from D_cls; pairs: of x_s and x."""
    terms = divergence(theirs, own) + cross_entropy(theirs, labels)
    if len(pairs[0]):
        terms = terms + divergence(*pairs)
    return terms


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(p ‖ q) of two batches of logits, mean over the batch; both sides learn."""
    log_p, log_q = (log_softmax(logits, dim=1) for logits in (first, second))
    return kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def drawn(choices: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """That many labels, uniformly from these."""
    return choices[torch.randint(len(choices), (count,), generator=rng)]


def labels_in(mask: Tensor) -> Tensor:
    """The labels of a mask over the classes."""
    return mask.cpu().nonzero().flatten()


def balanced(label_sets: list[Tensor], count: int, rng: torch.Generator) -> list[Tensor]:
    """A label-balanced batch from a pool to which every client gives `count` images of its own labels.

    label_sets: each client's labels, as masks. Returns the labels of those images that each client gives to the batch:
    only these need to be made, since an image of a frozen generator depends on no other.
    """
    pool = torch.cat([drawn(labels_in(mask), count, rng) for mask in label_sets])
    owners = torch.arange(len(label_sets)).repeat_interleave(count)
    present = torch.zeros_like(label_sets[0]).index_fill_(0, pool, True)
    wanted = drawn(labels_in(present), count, rng)
    lots = torch.rand(count, len(pool), generator=rng).masked_fill_(pool != wanted[:, None], -1.0)
    givers = owners[lots.argmax(dim=1)]
    return [wanted[givers == client] for client in range(len(label_sets))]


def _resized(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    if images.shape[-2:] == shape[-2:]:
        return images
    return interpolate(images, size=shape[-2:], mode="bilinear", align_corners=False, antialias=True)
