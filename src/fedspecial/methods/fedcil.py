"""FedCIL (Qi, Zhao and Li, ICLR 2023): clients replay earlier tasks from a class-conditional GAN they train together.

    client m   min_θ  w·CE(f(x), y) + (1 − w)·CE(f(x_r), y_r),  x_r = G⁻(z, y_r),  y_r from Y_m      (from task 2 on)
               then one Adam step each on critic D and generator G (`fedcil_gan.py`)
    server     f, G, D ← means; then `server_iterations` times: a label-balanced batch of what the received
               generators G_m make, one of what G⁻ makes, and a step on the averaged G and D

f: the classifier · w: `importance` · w_con: `consistency` · G⁻: the server's generator when the previous task ended,
the payload "old_generator" · G^s: the generator just downloaded · Y_m: labels that client m has had so far ("labels"
of its state) · "first_task": the task in which a class was first trained by any client (0: never), so that no
generator has to make a class that it never saw.

The consistency terms push D to see real, own and downloaded images of a class alike; there are none in the first round
of a task. The authors' released code multiplies them by 0: `consistency=0`. Their critic is also the classifier; here
the classifier is a model of its own, as the published memory of the comparison demands. Clients replay the server's
G⁻ and not a copy of their own, which with few clients a round would be out of date. Images with more than `gan_size`
pixels a side are shrunk for the critic, and those of the generator are enlarged for f, because generating large images
is slow and their quality is poor.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedspecial.core.messages import Broadcast, ServerState, Tensors, Update
from fedspecial.core.streams import stream_seed
from fedspecial.methods.base import ClientContext, Method, ProblemSpec, RoundInfo, ServerContext, StepReport
from fedspecial.methods.fedcil_gan import Agreement, Gan, Pictures, Scale, balanced, drawn, labels_in
from fedspecial.models.generators import LARGEST, conditional_generator, critic

Share = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]

# The server weighs new and old images alike, whatever clients do.
EVEN = 0.5


class Choices(NamedTuple):
    """The labels that a client draws from in a round: those it has had, of them those that G⁻ was trained on, and those
    that the downloaded generator was trained on. On the CPU, once per round: no step waits for the device."""

    own: Tensor
    replayed: Tensor
    known: Tensor


@dataclass(frozen=True)
class FedCil(Method):
    """Replay images of a class-conditional GAN that clients and server train together.

    min_θ w·CE(f(x), y) + (1 − w)·CE(f(x_r), y_r), x_r = G⁻(z, y_r)

    Args:
        importance: Weight w of the new task's samples, in [0, 1]; the rest is for replayed images.
        consistency: Weight of the consistency terms of the critic, ≥ 0.
        server_iterations: Steps on the averaged GAN at the server after each round, ≥ 0.
        server_batch: Images per batch at the server, ≥ 2.
        gan_every: Batches of the classifier per step on the GAN, ≥ 1.
        gan_lr: Learning rate of generator and critic, > 0.
        gan_betas: Adam's two decay rates, each in [0, 1).
        gan_weight_decay: Weight decay of generator and critic, ≥ 0.
        generator_width: Channels of generator and critic, ≥ 1.
        gan_size: Largest height and width of the GAN's images, ≥ 8; larger images are resized.

    Example:
        ``fedspecial.run("digits-shift", method=FedCil(importance=0.5))``

    Reference:
        Qi, Zhao and Li, Better Generative Replay for Continual Federated Learning, ICLR 2023.
    """

    name: ClassVar[str] = "fedcil"
    needs_class_scores: ClassVar[bool] = True
    fedavg_when: ClassVar = {"importance": 1.0, "consistency": 0.0, "server_iterations": 0}
    kinds: ClassVar = ("image",)
    memory_excluded: ClassVar = frozenset({"payload/old_generator"})

    importance: Annotated[Share, Field(description="weight of new samples; the rest is for replayed images")] = 0.5
    consistency: Annotated[Strength, Field(description="weight of the critic's consistency terms")] = 1.0
    server_iterations: Annotated[int, Field(ge=0, description="steps on the averaged GAN after each round")] = 50
    server_batch: Annotated[int, Field(ge=2, description="images per batch at the server")] = 32
    gan_every: Annotated[int, Field(ge=1, description="batches of the classifier per step on the GAN")] = 1
    gan_lr: Annotated[float, Field(gt=0, allow_inf_nan=False, description="learning rate of generator and critic")] = (
        1e-4
    )
    gan_betas: Annotated[tuple[Beta, Beta], Field(description="Adam's two decay rates")] = (0.5, 0.99)
    gan_weight_decay: Annotated[Strength, Field(description="weight decay of generator and critic")] = 1e-5
    generator_width: Annotated[int, Field(ge=1, description="channels of generator and critic")] = 64
    gan_size: Annotated[int, Field(ge=8, description="largest side of the GAN's images, in pixels")] = LARGEST

    def networks(self, problem: ProblemSpec) -> dict[str, nn.Module]:
        shape, width = self.gan_shape(problem), self.generator_width
        generator = conditional_generator(shape, problem.classes, width)
        return {"generator": generator, "critic": critic(shape, problem.classes, width)}

    def gan_shape(self, problem: ProblemSpec) -> tuple[int, ...]:
        """Of the images that the GAN makes and judges."""
        channels, *sides = problem.input_shape
        return (channels, *(min(side, self.gan_size) for side in sides))

    # --- server half ------------------------------------------------------------------------------------------

    def begin_task(self, server: ServerState, context: ServerContext) -> None:
        server.tensors.setdefault("first_task", torch.zeros(context.problem.classes, dtype=torch.int64))
        self._take(server)  # what clients sent in a last round without a quorum is of the previous task
        if context.task > 1:
            server.tensors["old_generator"] = server.tensors["generator"].clone()

    def broadcast(self, server: ServerState, client: int, task: int, round: int) -> Broadcast:
        message = super().broadcast(server, client, task, round)
        message.vectors |= {name: server.tensors[name] for name in ("generator", "critic")}
        message.payloads["first_task"] = server.tensors["first_task"]
        if task > 1 and self.importance < 1:
            message.payloads["old_generator"] = server.tensors["old_generator"]
        return message

    def receive(self, server: ServerState, update: Update) -> None:
        """Store each client's labels and generator until the end of the round; ignore clients without valid labels."""
        labels, known = update.uploads.get("labels"), server.tensors["first_task"]
        if labels is None or labels.dtype != torch.bool or labels.shape != known.shape or not bool(labels.any()):
            return
        server.tensors[f"labels/{update.client}"] = labels.clone()
        if self.server_iterations:
            server.tensors[f"generator/{update.client}"] = server.tensors["generator"] + update.deltas["generator"]

    def server_step(self, server: ServerState, mean: Tensors, info: RoundInfo) -> StepReport:
        super().server_step(server, mean, info)
        for name in ("generator", "critic"):
            server.tensors[name].add_(mean[name])
        label_sets, generators = self._take(server)
        first_task = server.tensors["first_task"]
        for labels in label_sets:
            first_task[labels & (first_task == 0)] = info.task
        if generators:
            self._consolidate(server, info, generators, label_sets)
        return StepReport(metrics={"teachers": len(label_sets)})

    def _take(self, server: ServerState) -> tuple[list[Tensor], list[Tensor]]:
        """Labels and generators received since the last server step, in the order of clients, not of replies."""
        teachers = sorted(int(name.split("/")[1]) for name in server.tensors if name.startswith("labels/"))
        labels = [server.tensors.pop(f"labels/{client}") for client in teachers]
        return labels, [server.tensors.pop(f"generator/{client}") for client in teachers if self.server_iterations]

    def _consolidate(
        self, server: ServerState, info: RoundInfo, generators: list[Tensor], label_sets: list[Tensor]
    ) -> None:
        """Train the averaged GAN on images of the received generators."""
        context = info.context
        assert context is not None
        for name in ("generator", "critic"):
            context.networks[name].load(server.tensors[name])
        rng = torch.Generator().manual_seed(stream_seed(context.seed, self.name, info.task, info.round) % 2**63)
        gan = Gan.of(context.networks, rng, self.gan_lr, self.gan_betas, self.gan_weight_decay)
        trained_before = _trained_before(server.tensors["first_task"], info.task)
        old, known = (labels_in(m) for m in (trained_before, trained_before | torch.stack(label_sets).any(dim=0)))
        for _ in range(self.server_iterations):
            wanted = balanced(label_sets, self.server_batch, rng)
            made = [gan.frozen(*pair) for pair in zip(generators, wanted, strict=True) if len(pair[1])]
            new = Pictures(*(torch.cat(parts) for parts in zip(*made, strict=True)))
            replayed = None
            if len(old):
                replayed = gan.frozen(server.tensors["old_generator"], drawn(old, self.server_batch, rng))
            gan.step(new, replayed, drawn(known, self.server_batch, rng), EVEN)
        for name in ("generator", "critic"):
            server.tensors[name].copy_(context.networks[name].vector)

    # --- client half ------------------------------------------------------------------------------------------

    def begin_round(self, context: ClientContext) -> None:
        mine = torch.bincount(context.data.labels, minlength=context.problem.classes) > 0
        context.uploads["labels"] = mine
        had = context.state.tensors["labels"] = mine | context.state.tensors.get("labels", mine)
        trained = context.broadcast.payloads["first_task"].cpu()
        context.scratch["choices"] = Choices(
            own=labels_in(had),
            replayed=labels_in(had & _trained_before(trained, context.broadcast.task)),
            known=labels_in(trained > 0),
        )
        gan = Gan.of(context.networks, context.generator, self.gan_lr, self.gan_betas, self.gan_weight_decay)
        scale = Scale.of(context.problem, self.gan_shape(context.problem), context.data.device)
        context.scratch["gan"], context.scratch["scale"] = gan, scale
        context.scratch |= {f"{name}_moments": adam.moments for name, adam in gan.adams.items()}

    def loss(self, context: ClientContext, x: Tensor, y: Tensor) -> Tensor:
        scale: Scale = context.scratch["scale"]
        replayed = self._replayed(context, len(x))
        if (context.batch - 1) % self.gan_every == 0:
            self._train_gan(context, Pictures(scale.to_gan(x), y), replayed)
        if replayed is None:
            return super().loss(context, x, y)
        both = torch.cat((x, scale.to_classifier(replayed.images)))
        new, old = torch.split(context.model(both), [len(x), len(replayed.labels)])
        return self.importance * cross_entropy(new, y) + (1 - self.importance) * cross_entropy(old, replayed.labels)

    def _replayed(self, context: ClientContext, count: int) -> Pictures | None:
        """G⁻(z, y_r) with y_r uniform over the labels that the client has had and G⁻ was trained on."""
        payloads, choices = context.broadcast.payloads, context.scratch["choices"].replayed
        if "old_generator" not in payloads or not len(choices):
            return None
        gan: Gan = context.scratch["gan"]
        return gan.frozen(payloads["old_generator"], drawn(choices, count, gan.rng))

    def _train_gan(self, context: ClientContext, real: Pictures, replayed: Pictures | None) -> None:
        """One step on D and G. BatchNorm in G cannot normalise a single image, so at least two are made."""
        gan: Gan = context.scratch["gan"]
        labels = drawn(context.scratch["choices"].own, max(2, len(real.labels)), gan.rng)
        gan.step(real, replayed, labels, self.importance, self._agreement(context, real))

    def _agreement(self, context: ClientContext, real: Pictures) -> Agreement | None:
        known = context.scratch["choices"].known
        if not self.consistency or context.broadcast.round == 0 or not len(known):
            return None
        gan: Gan = context.scratch["gan"]
        downloaded = context.broadcast.vector("generator")
        # The labels of the batch, from the CPU: reading them from the device would wait for it.
        matching = context.data.y[torch.from_numpy(context.data.rows)[context.positions]]
        labels = drawn(known, len(real.labels), gan.rng)
        rows = torch.from_numpy(np.flatnonzero(np.isin(matching.numpy(), known.numpy())))
        made = gan.frozen(downloaded, torch.cat((matching[rows], labels)))
        matched, theirs = torch.split(made.images, [len(rows), len(labels)])
        own = gan.frozen(gan.generator.vector, labels)
        return Agreement(self.consistency, rows, matched, Pictures(theirs, own.labels), own.images)


def _trained_before(first_task: Tensor, task: int) -> Tensor:
    """The classes that were trained before this task began."""
    return (first_task > 0) & (first_task < task)
