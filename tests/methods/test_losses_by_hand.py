"""The losses of the compared methods, computed by hand on a few samples.

All scores are 0 or a multiple of ln 3, so that every exponential is a whole number: ln(1 + e^{ln 3}) = ln 4 and
ln(1 + e^{−ln 3}) = ln(4/3). A cross-entropy of the two scores (s, 0) is ln(1 + e^{−s}) for label 0, ln(1 + e^s) for 1.
"""

from __future__ import annotations

from math import exp, log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedspecial.core.messages import ClientState, ServerState
from fedspecial.core.vector import FlatModel
from fedspecial.methods import pfeddil_slots as slots
from fedspecial.methods.fedcil_gan import Agreement, Gan, Judged, Pictures, critic_loss, disagreement, taken_for_real
from fedspecial.methods.mfcl import Mfcl
from fedspecial.methods.pfeddil import PFedDil
from fedspecial.methods.srfdil import _weighted_mean
from fedspecial.methods.srfdil_cache import Pool, class_means

LN3 = log(3)


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-5)


# --- FedCIL ------------------------------------------------------------------------------------------------------


class LinearCritic(nn.Module):
    """D_rf(x) = 2x and D_cls(x) = (x, 0) of an image with one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.tensor([2.0, 1.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        real, first = (self.slopes * x.view(-1, 1)).unbind(1)
        return real, torch.stack((first, torch.zeros_like(first)), dim=1)


class ConstantGenerator(nn.Module):
    """G(z, v) = g, whatever noise and label are."""

    latent = 1

    def __init__(self, pixel: float) -> None:
        super().__init__()
        self.pixel = nn.Parameter(torch.tensor([pixel]))

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        return self.pixel.expand(len(noise), 1)


def pictures(pixels: list[float], labels: list[int]) -> Pictures:
    return Pictures(torch.tensor(pixels).view(-1, 1), torch.tensor(labels))


def judged(pixels: list[float], labels: list[int]) -> Judged:
    return Judged(*LinearCritic()(pictures(pixels, labels).images), torch.tensor(labels))


# Two real images, x = ln 3 and 0, of classes 0 and 1:
# BCE(D_rf, 1) = (ln(1 + 1/9) + ln 2) / 2 and CE = (ln(4/3) + ln 2) / 2.
REAL = [LN3, 0.0], [0, 1]
R_REAL = (log(10 / 9) + log(2)) / 2 + (log(4 / 3) + log(2)) / 2
# Two replayed images, x_r = −ln 3 and −ln 3, of classes 0 and 1: BCE(D_rf, 1) = ln(1 + 9), CE = (ln 4 + ln(4/3)) / 2.
REPLAYED = [-LN3, -LN3], [0, 1]
R_REPLAYED = log(10) + (log(4) + log(4 / 3)) / 2
# Two generated images, x_f = ln 3 and −ln 3, both made for class 0: BCE(D_rf, 0) = (ln(1 + 9) + ln(1 + 1/9)) / 2,
# CE = (ln(4/3) + ln 4) / 2.
FAKES = [LN3, -LN3], [0, 0]
FAKE_TERMS = (log(10) + log(10 / 9)) / 2 + (log(4 / 3) + log(4)) / 2


def test_fedcils_critic_takes_real_and_replayed_images_for_real_and_generated_ones_for_fake() -> None:
    real, replayed, fakes = judged(*REAL), judged(*REPLAYED), judged(*FAKES)
    assert taken_for_real(real).item() == near(R_REAL)
    assert critic_loss(real, None, fakes, weight=0.25).item() == near(R_REAL + FAKE_TERMS)
    by_hand = 0.25 * R_REAL + 0.75 * R_REPLAYED + FAKE_TERMS
    assert critic_loss(real, replayed, fakes, weight=0.25).item() == near(by_hand)


def test_fedcils_generated_images_called_real_cost_the_critic_more_than_those_called_fake() -> None:
    """D_rf = 2 ln 3 costs ln 10, D_rf = −2 ln 3 costs ln(10/9); the generator pays the other way round."""
    scores, labels = torch.zeros(2, 2), torch.tensor([0, 1])  # CE = ln 2
    for score, critic, generator in ((2 * LN3, log(10), log(10 / 9)), (-2 * LN3, log(10 / 9), log(10))):
        fakes = Judged(torch.full((2,), score), scores, labels)
        nothing = Judged(torch.zeros(2), scores, labels)  # R = ln 2 + ln 2
        assert critic_loss(nothing, None, fakes, weight=1.0).item() == near(3 * log(2) + critic)
        assert taken_for_real(fakes).item() == near(generator + log(2))


def test_fedcils_disagreement_is_two_divergences_and_a_cross_entropy() -> None:
    """p = (3/4, 1/4) for the score ln 3 and (1/2, 1/2) for 0: KL(p ‖ q) = 3/4 ln(3/2) + 1/4 ln(1/2)."""
    confident, undecided = torch.tensor([[LN3, 0.0]] * 2), torch.zeros(2, 2)
    forward, backward = 0.75 * log(3 / 2) + 0.25 * log(1 / 2), 0.5 * log(2 / 3) + 0.5 * log(2)
    labels, ce = torch.tensor([0, 1]), (log(4 / 3) + log(4)) / 2
    found = disagreement((undecided, confident), confident, undecided, labels)
    assert found.item() == near(backward + forward + ce)
    nobody = undecided[:0], confident[:0]
    assert disagreement(nobody, confident, undecided, labels).item() == near(forward + ce)


def linear_gan(pixel: float, critic: nn.Module | None = None, lr: float = 0.01) -> Gan:
    networks = {"generator": FlatModel(ConstantGenerator(pixel)), "critic": FlatModel(critic or LinearCritic())}
    return Gan.of(networks, torch.Generator().manual_seed(1), lr, (0.5, 0.99), 0.0)


def test_fedcils_critic_sees_every_batch_in_its_own_term() -> None:
    """The sum of all terms from one pass of the critic: w = 1/4, w_con = 2, and one of two real images has a pair.

    x_s = 0 belongs to the second real image x = 0: KL = 0, and to the first x = ln 3: KL(½, ½ ‖ ¾, ¼).
    u_s = ln 3 and ln 3 for classes 0 and 1, u = 0: KL(¾, ¼ ‖ ½, ½) and CE = (ln(4/3) + ln 4) / 2.
    """
    theirs, own = pictures([LN3, LN3], [0, 1]), torch.zeros(2, 1)
    forward, backward = 0.75 * log(3 / 2) + 0.25 * log(1 / 2), 0.5 * log(2 / 3) + 0.5 * log(2)
    plain = 0.25 * R_REAL + 0.75 * R_REPLAYED + FAKE_TERMS
    batches = pictures(*REAL), pictures(*REPLAYED), pictures(*FAKES)
    for row, divergence in ((0, backward), (1, 0.0)):
        agreement = Agreement(2.0, torch.tensor([row]), torch.zeros(1, 1), theirs, own)
        loss = linear_gan(0.0)._critic_loss(*batches, 0.25, agreement)
        assert loss.item() == near(plain + 2 * (divergence + forward + (log(4 / 3) + log(4)) / 2))
    assert linear_gan(0.0)._critic_loss(*batches, 0.25, None).item() == near(plain)
    without_replay = linear_gan(0.0)._critic_loss(batches[0], None, batches[2], 0.25, None)
    assert without_replay.item() == near(R_REAL + FAKE_TERMS)


class RealOrFake(nn.Module):
    """D_rf(x) = d·x, and no opinion about classes."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (self.slope * x).flatten(), torch.zeros(len(x), 2)


def test_a_step_of_fedcils_gan_moves_critic_and_generator_in_opposite_directions() -> None:
    """Adam's first step is the learning rate, against the sign of the gradient.

    Real images are 1, generated ones 2. The critic's slope d = 1 has the gradient −σ(−1) + 2σ(2) > 0 and falls. For the
    generator, images that look more real are better, so its pixel rises. Called real, the generated images would have
    given the critic −σ(−1) − 2σ(−2) < 0.
    """
    gan = linear_gan(2.0, RealOrFake(), lr=0.01)
    labels = torch.tensor([0, 1])
    gan.step(pictures([1.0, 1.0], [0, 1]), None, labels, 1.0)
    assert gan.critic.vector.item() == near(1 - 0.01)
    assert gan.generator.vector.item() == near(2 + 0.01)


# --- MFCL --------------------------------------------------------------------------------------------------------


def stripes(height: float = 1.0) -> Tensor:
    """Two images whose columns are alternately +height and −height."""
    return height * (1 - 2 * (torch.arange(8) % 2)).float().expand(2, 1, 8, 8)


# Smoothing multiplies stripes by s: the weights 1, e^(−1/4), e^(−1) of columns 0, 1 and 2 away, with alternating signs.
S = (1 - 2 * exp(-1 / 4) + 2 * exp(-1)) / (1 + 2 * exp(-1 / 4) + 2 * exp(-1))


def test_mfcls_generator_loss_is_the_weighted_sum_of_four_terms() -> None:
    """Two samples with the scores o = (2 ln 3, 0) and τ = 2.

    L_CE: o/τ = (ln 3, 0) and the label is 0, ln(4/3). L_div: softmax(o) = (9/10, 1/10) for both. L_BN: layers with
    gaps of 0.2 and 0.6. L_pr: stripes of height 1 differ from their smoothed copies by 1 − s everywhere.
    """
    method = Mfcl(w_div=0.5, w_bn=3.0, w_pr=10.0, tau=2.0)
    logits, gaps = torch.tensor([[2 * LN3, 0.0]] * 2), [torch.tensor(0.2), torch.tensor(0.6)]
    l_ce, l_div, l_pr = log(4 / 3), 1 + (0.9 * log(0.9) + 0.1 * log(0.1)) / log(2), (1 - S) ** 2
    assert l_pr == near(0.894735)
    loss = l_ce + 0.5 * l_div + 10 * l_pr
    assert method._generator_loss(stripes(), logits, []).item() == near(loss)
    assert method._generator_loss(stripes(), logits, gaps).item() == near(loss + 3 * 0.4)


class Pattern(nn.Module):
    """Images with g times a fixed pattern, whatever the noise is."""

    def __init__(self, pattern: Tensor, start: float) -> None:
        super().__init__()
        self.register_buffer("pattern", pattern, persistent=False)
        self.height = nn.Parameter(torch.tensor([start]))

    def forward(self, noise: Tensor) -> Tensor:
        return self.height * self.pattern  # type: ignore[operator]


class Brightness(nn.Module):
    """The scores (mean of the image, 0), with or without a BatchNorm layer whose inputs are the image."""

    def __init__(self, weight: float, running_mean: float | None = None) -> None:
        super().__init__()
        self.weight = weight
        self.norm = nn.Identity() if running_mean is None else nn.BatchNorm2d(1)
        if running_mean is not None:
            self.norm.running_mean.fill_(running_mean)  # type: ignore[union-attr,operator]

    def forward(self, images: Tensor) -> Tensor:
        bright = self.weight * self.norm(images).mean((1, 2, 3))
        return torch.stack((bright, torch.zeros_like(bright)), dim=1)


@pytest.mark.parametrize(
    ("settings", "classifier", "pattern", "start", "end"),
    [
        # L_CE: of brightness 1 and 0 the first is larger; brighter images are more certain.
        ({}, Brightness(1.0), torch.ones(2, 1, 8, 8), 1.0, 1.01),
        # L_BN: all scores are 0, and the layer's running mean is 3.
        ({"w_bn": 1.0}, Brightness(0.0, running_mean=3.0), torch.ones(2, 1, 8, 8), 1.0, 1.01),
        ({"w_bn": 1.0}, Brightness(0.0, running_mean=-3.0), torch.ones(2, 1, 8, 8), 1.0, 0.99),
        # L_div: 1 − entropy falls when images get darker, towards scores that are alike; L_CE alone would brighten.
        ({"w_div": 100.0}, Brightness(1.0), torch.ones(2, 1, 8, 8), 1.0, 0.99),
        # L_pr: all scores are 0; lower stripes are smoother.
        ({"w_pr": 1.0}, Brightness(0.0), stripes(), 1.0, 0.99),
    ],
    ids=["L_CE", "L_BN up", "L_BN down", "L_div", "L_pr"],
)
def test_a_step_of_mfcls_generator_follows_each_of_its_losses(
    settings: dict[str, float], classifier: nn.Module, pattern: Tensor, start: float, end: float
) -> None:
    """Adam's first step is the learning rate, 0.01, against the sign of the gradient."""
    method = Mfcl(**{"w_div": 0.0, "w_bn": 0.0, "w_pr": 0.0, "tau": 1.0, **settings}, iterations=1, generator_lr=0.01)
    generator = FlatModel(Pattern(pattern, start))
    method._distil(classifier.eval(), generator, classes=2)
    assert generator.vector.item() == near(end)


# --- pFedDIL -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "by_hand"),
    [
        # The head gives (0, ln 3), "familiar": a sample that the classifier gets right costs ln(4/3), a wrong one ln 4.
        # Unbalanced, three right and one wrong would cost (3 ln(4/3) + ln 4) / 4.
        ([True, True, True, False], (log(4 / 3) + log(4)) / 2),
        ([True, False, False, False], (log(4 / 3) + log(4)) / 2),
        ([True, True, True, True], log(4 / 3)),
        ([False, False], log(4)),
    ],
)
def test_pfeddils_auxiliary_head_weighs_right_and_wrong_alike_however_rare_one_is(
    right: list[bool], by_hand: float
) -> None:
    head = nn.Linear(1, 2, bias=False)
    head.weight.data = torch.tensor([[0.0], [LN3]])
    context: Any = SimpleNamespace(networks={"aux": FlatModel(head)})
    features = torch.ones(len(right), 1)
    loss = PFedDil()._auxiliary(context, features, features, torch.tensor(right))
    assert loss.item() == near(by_hand)


class LinearClassifier(nn.Module):
    """The features are the inputs, and the scores are (x, 0)."""

    def features(self, x: Tensor) -> Tensor:
        return x

    def fc(self, features: Tensor) -> Tensor:
        return torch.cat((features, torch.zeros_like(features)), dim=1)


def test_pfeddils_auxiliary_head_learns_that_the_classifier_is_right() -> None:
    """Inputs ln 3 and −ln 3, both of class 0: CE = (ln(4/3) + ln 4) / 2, and only the first is recognised.

    The head's scores are (0, x), so it takes the first sample for familiar, ln(4/3), and the second for unfamiliar,
    ln(4/3) as well. With right and wrong exchanged it would pay ln 4.
    """
    head = nn.Linear(1, 2, bias=False)
    head.weight.data = torch.tensor([[0.0], [1.0]])
    context: Any = SimpleNamespace(
        networks={"aux": FlatModel(head)}, model=SimpleNamespace(module=LinearClassifier()), scratch={}
    )
    loss = PFedDil().loss(context, torch.tensor([[LN3], [-LN3]]), torch.tensor([0, 0]))
    assert loss.item() == near((log(4 / 3) + log(4)) / 2 + log(4 / 3))


def test_pfeddils_proximal_term_pulls_to_the_models_as_the_task_began() -> None:
    """w̄_1 = (1, 2) and w̄_2 = (5, 6), ρ = 0.25 and 0.75: the centre is (4, 5) in every round, and κ Σρ ‖w − c‖² has the
    gradient 2κ Σρ (w − c)."""
    server = ServerState(torch.tensor([1.0, 2.0]))
    slots.create(server, clients=1)
    slots.add_task(server, 2)
    slots.mark_trained(server, ["theta"], classes=2)
    slots.open_slot(server, 2)
    server.models["slot/2"].copy_(torch.tensor([5.0, 6.0]))
    slots.mark_trained(server, ["slot/2"], classes=2)
    slots.assign(server, 0, 2, task=2)
    slots.store_start(server)
    method, state = PFedDil(kappa=3.0, signal="confidence"), ClientState(numbers={"rho/2/1": 0.25, "rho/2/2": 0.75})
    info: Any = SimpleNamespace(context=SimpleNamespace(num_classes=2), server_lr=1.0)
    for round in range(3):
        message = method.broadcast(server, 0, 2, round)
        moved = 10.0 * round
        assert message.vector("theta").tolist() == [5 + moved, 6 + moved]
        weights = message.vector("theta")
        context: Any = SimpleNamespace(broadcast=message, state=state, weights=weights, scratch={})
        term = method.proximal_term(context)
        assert term is not None
        assert term.center.tolist() == [4.0, 5.0]
        assert term.weight == 2 * 3.0 * (0.25 + 0.75)
        change = torch.full((2,), 10.0)
        method.server_step(server, {"slot/2": change, "theta": 7 * change}, info)


# --- SR-FDIL -----------------------------------------------------------------------------------------------------


def test_srfdils_class_means_are_means_over_samples() -> None:
    """Domain 1: class 0 has (1, 0), (1, 0), (0, 1), class 1 has (0, 1); domain 2 has one sample of class 1."""
    h = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    pool = Pool(torch.zeros(5, 1), torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1, 1, 1, 1, 2]))
    means, counts = class_means(h, pool, tasks=2, classes=2)
    assert counts.tolist() == [[3, 1], [0, 1]]
    torch.testing.assert_close(means, torch.tensor([[[2 / 3, 1 / 3], [0.0, 1.0]], [[0.0, 0.0], [1.0, 0.0]]]))


def test_srfdils_global_class_means_weigh_each_client_by_its_samples() -> None:
    """Class 0: (3·(1, 0) + 1·(0, 1)) / 4; class 1: one client's alone; class 2: nobody's."""
    first = {"means": torch.tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]]), "counts": torch.tensor([[3, 5, 0]])}
    second = {"means": torch.tensor([[[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]]), "counts": torch.tensor([[1, 0, 0]])}
    assert _weighted_mean([first, second]).tolist() == [[[0.75, 0.25], [0.0, 2.0], [0.0, 0.0]]]
