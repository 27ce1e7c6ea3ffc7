"""Laws of the parts of FedCIL's GAN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedspecial.methods.base import ProblemSpec
from fedspecial.methods.fedcil import FedCil
from fedspecial.methods.fedcil_gan import Adam, Scale, balanced, divergence, drawn, labels_in


def mask(*labels: int, classes: int = 4) -> Tensor:
    return torch.zeros(classes, dtype=torch.bool).index_fill_(0, torch.tensor(labels), True)


def test_large_images_are_shrunk_for_the_gan_and_generated_ones_enlarged() -> None:
    problem = ProblemSpec("image", (3, 96, 80), 10, 4, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    assert FedCil().gan_shape(problem) == (3, 64, 64)
    assert FedCil(gan_size=224).gan_shape(problem) == (3, 96, 80)
    scale = Scale.of(problem, FedCil().gan_shape(problem))
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (problem.mean, problem.std))
    for value, expected in ((0.0, -1.0), (1.0, 1.0), (0.25, -0.5)):
        x = ((value - mean) / std).expand(2, 3, 96, 80)
        seen = scale.to_gan(x)
        assert seen.shape == (2, 3, 64, 64)
        torch.testing.assert_close(seen, torch.full_like(seen, expected))
        torch.testing.assert_close(scale.to_classifier(seen), x.contiguous())


def test_divergence_is_the_kullback_leibler_divergence() -> None:
    first, second = (torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    p, q = first.softmax(dim=1), second.softmax(dim=1)
    assert float(divergence(first, second)) == pytest.approx(float((p * (p / q).log()).sum() / 5), rel=1e-5)
    assert float(divergence(first, first)) == pytest.approx(0, abs=1e-7)
    assert float(divergence(first, second)) > 0


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_equals_torchs_adam(decay: float) -> None:
    ours, theirs = ([torch.arange(6.0).view(2, 3).add(1), torch.tensor([0.5])] for _ in range(2))
    adam = Adam(ours, 0.1, (0.5, 0.99), decay)
    parameters = [torch.nn.Parameter(weight) for weight in theirs]
    usual = torch.optim.Adam(parameters, 0.1, (0.5, 0.99), weight_decay=decay)
    for step in range(5):
        gradients = [torch.sin(weight.detach() + step) for weight in parameters]
        adam.step([gradient.clone() for gradient in gradients])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        usual.step()
    for own, parameter in zip(ours, parameters, strict=True):
        torch.testing.assert_close(own, parameter.detach())


def test_a_balanced_batch_has_every_label_equally_often_and_only_from_clients_that_have_it() -> None:
    rng, client_labels = torch.Generator().manual_seed(1), [mask(0), mask(0, 1), mask(1, 3)]
    counts = torch.zeros(3, 4)
    for _ in range(200):
        batch = balanced(client_labels, 32, rng)
        assert sum(map(len, batch)) == 32
        for client, labels in enumerate(batch):
            counts[client] += torch.bincount(labels, minlength=4)
    assert not bool(counts[~torch.stack(client_labels)].any())
    shares = counts.sum(dim=0) / counts.sum()
    torch.testing.assert_close(shares, torch.tensor([1 / 3, 1 / 3, 0, 1 / 3]), atol=0.02, rtol=0)
    # Of label 0 the first client gives the pool 32 images and the second about 16.
    assert float(counts[0, 0] / counts[1, 0]) == pytest.approx(2, rel=0.1)


def test_labels_are_drawn_uniformly_from_those_allowed() -> None:
    labels = drawn(labels_in(mask(1, 2)), 4000, torch.Generator().manual_seed(1))
    assert set(labels.tolist()) == {1, 2}
    assert float((labels == 1).float().mean()) == pytest.approx(0.5, abs=0.03)
