"""Generators and critic have the published sizes, and generated images have the shape and scale of the data."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedspecial.core.vector import FlatModel
from fedspecial.errors import InputError
from fedspecial.models.generators import (
    UpsampledConv2d,
    conditional_generator,
    critic,
    data_free_generator,
    latent_size,
)

SHAPES = [(1, 8, 8), (3, 16, 16), (1, 28, 28), (3, 30, 30), (3, 32, 32), (3, 48, 64), (3, 64, 64), (3, 224, 224)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "×".join(map(str, shape)))


@pytest.fixture(autouse=True)
def _same_weights_every_time():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(25)
        yield


def count(module):
    return sum(weight.numel() for weight in module.parameters())


def conditional(shape=(3, 16, 16), classes=4, **options):
    return conditional_generator(shape, classes, **{"width": 4, **options})


def data_free(shape=(3, 16, 16)):
    return data_free_generator(shape, width=8, latent=12)


def images(generator, size=4, noise=None):
    noise = torch.randn(size, generator.latent) if noise is None else noise
    return generator(noise, torch.arange(len(noise)) % 4) if hasattr(generator, "num_classes") else generator(noise)


def has_gradients(module):
    """Every trainable weight has a gradient. Only a bias may have a zero one: a norm cancels the bias before it."""
    trainable = [weight for weight in module.parameters() if weight.requires_grad]
    return all(weight.grad is not None and (weight.dim() == 1 or bool(weight.grad.any())) for weight in trainable)


MODULES = {"conditional": conditional, "critic": lambda: critic((3, 16, 16), 4, width=4), "data-free": data_free}
every_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
every_generator = pytest.mark.parametrize("make", [conditional, data_free], ids=["conditional", "data-free"])


class TestPublishedSizes:
    def test_fedcil_networks_at_32_pixels(self):
        assert count(conditional_generator((3, 32, 32), 10)) == 3_584_003
        assert count(critic((3, 32, 32), 10)) == 704_843

    def test_fedcil_networks_at_224_pixels(self):
        made = conditional_generator((3, 224, 224), 5)
        assert round(count(made) / 1e6, 1) == 43.3
        assert round(4 * count(made) / 2**20) == 165
        assert [round(count(critic((3, 224, 224), classes)) / 1e6, 1) for classes in (5, 7, 100)] == [1.9, 2.3, 20.9]

    def test_mfcl_generators(self):
        assert count(data_free_generator((3, 32, 32))) == 8_423_939
        assert round(count(data_free_generator((3, 64, 64))) / 1e6, 2) == 8.57
        assert round(count(data_free_generator((3, 224, 224))) / 1e6, 2) == 3.33

    def test_the_latent_size_is_at_least_100_and_larger_for_many_labels(self):
        assert [latent_size(classes) for classes in (2, 10, 11, 100)] == [100, 100, 111, 200]
        assert conditional(classes=100).latent == 200
        assert data_free_generator((3, 8, 8), width=2).latent == 1000


class TestImages:
    @every_shape
    def test_conditional_images_have_the_given_shape_and_values_between_minus_one_and_one(self, shape):
        made = images(conditional(shape))
        assert made.shape == (4, *shape)
        assert made.dtype == torch.float32
        assert made.abs().max() <= 1

    @every_shape
    def test_data_free_images_have_the_given_shape_and_are_normalised(self, shape):
        generator, seen = data_free(shape), []
        generator.norm.register_forward_pre_hook(lambda _, inputs: seen.extend(inputs))
        made = images(generator, 8)
        assert made.shape == (8, *shape)
        raw = seen[0].double()
        variance, mean = torch.var_mean(raw, (0, 2, 3), correction=0, keepdim=True)
        expected = (raw - mean) / (variance + generator.norm.eps).sqrt()
        assert torch.allclose(made.double(), expected, atol=1e-4)
        assert torch.allclose(made.mean((0, 2, 3)), torch.zeros(shape[0]), atol=1e-4)

    def test_data_free_images_start_with_the_variance_of_normalised_images(self):
        variance = images(data_free_generator((3, 32, 32)), 32).var((0, 2, 3))
        assert torch.allclose(variance, torch.ones(3), atol=0.01)

    @every_shape
    def test_the_critic_gives_one_logit_for_real_and_one_per_class(self, shape):
        real, classes = critic(shape, 7, width=4)(torch.zeros(2, *shape))
        assert real.shape == (2,)
        assert classes.shape == (2, 7)

    def test_large_images_are_made_at_their_own_size(self):
        generator = conditional((3, 224, 224))
        noise, labels = torch.zeros(2, generator.latent), torch.zeros(2, dtype=torch.int64)
        assert generator.body(generator.conditioned(noise, labels)).shape == (2, 3, 224, 224)

    @every_generator
    def test_in_evaluation_mode_an_image_does_not_depend_on_its_batch(self, make):
        generator = make().eval()
        noise = torch.randn(4, generator.latent)
        together = images(generator, noise=noise)
        assert torch.equal(together, images(generator, noise=noise))
        assert torch.allclose(together[:1], images(generator, noise=noise[:1]), atol=1e-5)

    @every_generator
    def test_images_depend_on_the_noise_only(self, make):
        generator = make().eval()
        noise = torch.randn(2, generator.latent)
        before = torch.get_rng_state()
        first = images(generator, noise=noise)
        assert torch.equal(before, torch.get_rng_state())
        assert not torch.equal(first, images(generator, noise=noise + 1))


class TestLabels:
    def test_the_first_entries_of_the_noise_become_the_one_hot_label(self):
        generator, noise = conditional(classes=3), torch.randn(2, 100)
        made = generator.conditioned(noise, torch.tensor([2, 0]))
        assert made[:, :3].tolist() == [[0, 0, 1], [1, 0, 0]]
        assert torch.equal(made[:, 3:], noise[:, 3:])

    def test_another_label_gives_another_image(self):
        generator, noise = conditional().eval(), torch.randn(1, 100)
        assert not torch.equal(generator(noise, torch.tensor([0])), generator(noise, torch.tensor([1])))

    def test_the_overwritten_entries_do_not_matter(self):
        generator, noise, label = conditional().eval(), torch.randn(1, 100), torch.tensor([1])
        first = generator(noise, label)
        noise[:, :4] += 1
        assert torch.equal(first, generator(noise, label))


class TestVector:
    @every_module
    def test_every_trainable_weight_and_running_statistic_is_in_the_vector(self, make):
        module = make()
        model = FlatModel(module)
        statistics = sum(buffer.numel() for buffer in module.buffers() if buffer.is_floating_point())
        trainable = sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
        assert model.layout.num_weights == trainable
        assert model.layout.size == trainable + statistics
        assert all(value.dtype in (torch.float32, torch.int64) for value in module.state_dict().values())

    @every_generator
    def test_a_loaded_generator_gives_the_images_of_the_saved_one(self, make):
        first, second = FlatModel(make()), FlatModel(make())
        images(first.module)
        second.load(first.vector)
        noise = torch.randn(3, first.module.latent)
        assert torch.equal(images(first.module.eval(), noise=noise), images(second.module.eval(), noise=noise))
        counters = [value for name, value in second.module.named_buffers() if name.endswith("num_batches_tracked")]
        assert counters
        assert not any(counters)

    def test_the_critic_has_no_running_statistics(self):
        model = FlatModel(critic((3, 16, 16), 4, width=4))
        assert model.layout.size == model.layout.num_weights


class TestLearning:
    def test_the_critics_losses_give_every_weight_of_both_networks_a_gradient(self):
        generator, discriminator = conditional(), critic((3, 16, 16), 4, width=4)
        real, classes = discriminator(images(generator))
        (functional.softplus(-real).mean() + functional.cross_entropy(classes, torch.arange(4))).backward()
        assert has_gradients(generator)
        assert has_gradients(discriminator)
        assert not any(weight.requires_grad for weight in discriminator.unused.parameters())

    def test_the_unused_norms_of_the_critic_change_nothing(self):
        discriminator, x = critic((3, 16, 16), 4, width=4), torch.randn(2, 3, 16, 16)
        before = discriminator(x)
        for weight in discriminator.unused.parameters():
            weight.fill_(7)
        assert all(torch.equal(old, new) for old, new in zip(before, discriminator(x), strict=True))

    def test_a_loss_on_data_free_images_gives_every_weight_a_gradient(self):
        generator = data_free()
        (images(generator, 8) * torch.randn(8, 3, 16, 16)).sum().backward()
        assert has_gradients(generator)

    def test_generator_and_critic_start_from_a_narrow_normal_distribution(self):
        for module in (conditional_generator((3, 32, 32), 10), critic((3, 32, 32), 10)):
            layers = [part for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)]
            weights = torch.cat([layer.weight.flatten() for layer in layers])
            assert weights.std().item() == pytest.approx(0.02, rel=0.01)
            assert not any(layer.bias.any() for layer in layers)

    def test_convolving_upsampled_is_upsampling_and_convolving(self):
        layer, x = UpsampledConv2d(3, 5, 3, padding=1).double(), torch.randn(2, 3, 4, 6, dtype=torch.float64)
        doubled = functional.interpolate(x, scale_factor=2)
        expected = functional.conv2d(doubled, layer.weight, layer.bias, padding=1)
        assert torch.allclose(layer(x), expected, atol=1e-12)
        gradients = [torch.autograd.grad(out.square().sum(), layer.weight)[0] for out in (layer(x), expected)]
        assert torch.allclose(*gradients)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: conditional((12,)), "input_shape=12: only images .* can be generated"),
        (lambda: critic((32, 32), 4), "input_shape=32×32: only images"),
        (lambda: data_free((3, 4, 32)), "input_shape=3×4×32: only images .* of at least 8×8"),
        (lambda: data_free(()), r"input_shape=\(\): only images"),
        (lambda: conditional(classes=10, latent=10), "latent=10: must exceed num_classes=10"),
        (lambda: conditional(classes=0), "num_classes=0: must be 1 or more"),
        (lambda: critic((3, 8, 8), 4, width=0), "width=0: must be 1 or more"),
        (lambda: data_free_generator((3, 8, 8), width=1), "width=1: must be 2 or more"),
        (lambda: data_free_generator((3, 8, 8), latent=0), "latent=0: must be 1 or more"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
