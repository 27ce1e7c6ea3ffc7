"""Laws of every model: reproducible initial weights, features and a linear head, clear error messages."""

import pytest
import torch
from torch import nn

from fedspecial import models
from fedspecial.errors import InputError

SHAPES = {"text": (12,)}


def make(name, seed=0, classes=10, width=None):
    return models.build(name, input_shape=SHAPES.get(name, (3, 32, 32)), num_classes=classes, width=width, seed=seed)


def batch(name, size=4):
    draw = torch.Generator().manual_seed(1)
    if name == "text":
        return torch.randint(0, 10**9, (size, 12), generator=draw)
    return torch.randn(size, 3, 32, 32, generator=draw)


def weights_of(model):
    return torch.cat([value.detach().flatten() for value in model.parameters()])


# A transformer starts from a pretrained encoder; it has its own tests.
NAMES = [name for name in models.names() if name != "transformer"]
every_model = pytest.mark.parametrize("name", NAMES)


@every_model
def test_the_initial_weights_depend_on_the_seed_only(name):
    first = weights_of(make(name, seed=25))
    torch.rand(7)
    assert torch.equal(first, weights_of(make(name, seed=25)))
    assert not torch.equal(first, weights_of(make(name, seed=225)))


@every_model
def test_building_does_not_change_torchs_generator(name):
    before = torch.get_rng_state()
    make(name, seed=25)
    assert torch.equal(before, torch.get_rng_state())


@every_model
def test_logits_are_the_linear_head_on_the_features(name):
    model, x = make(name).eval(), batch(name)
    assert isinstance(model.fc, nn.Linear)
    features = model.features(x)
    assert features.shape == (len(x), model.fc.in_features)
    assert torch.equal(model(x), model.fc(features))
    assert model(x).shape == (len(x), 10)


@every_model
def test_every_weight_gets_a_gradient(name):
    model = make(name)
    nn.functional.cross_entropy(model(batch(name, 8)), torch.arange(8) % 10).backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in model.parameters())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "logistic"])
def test_a_larger_width_gives_more_weights(name):
    assert weights_of(make(name, width=8)).numel() < weights_of(make(name, width=24)).numel()


def test_the_default_cnn_has_between_50_and_150_thousand_weights():
    assert 50_000 < weights_of(make("cnn")).numel() < 150_000


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (3, 64, 48)])
def test_the_cnn_accepts_images_of_other_sizes(shape):
    model = models.build("cnn", input_shape=shape, num_classes=3)
    assert model(torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet81", {}, r"model=resnet81: not a known model \(did you mean 'resnet18'\?\)"),
        (
            "cnn",
            {"input_shape": (64,)},
            r"model=cnn: needs images .* shape 64; mlp and logistic take numbers of any shape",
        ),
        ("resnet18", {"input_shape": (32, 32)}, r"model=resnet18: needs images .* shape 32×32"),
        ("cnn", {"input_shape": (3, 4, 4)}, r"model=cnn: needs images of at least 8×8, .* shape 3×4×4$"),
        ("cnn", {"input_shape": (16, 16, 3)}, r"model=cnn: .* shape 16×16×3; the channels come first"),
        ("text", {}, r"model=text: needs a row of token ids, .* shape 3×32×32"),
        ("mlp", {"width": 0}, r"width=0: must be 1 or more"),
        ("logistic", {"width": 8}, r"width=8: model 'logistic' has no hidden layer"),
        ("mlp", {"num_classes": 0}, r"num_classes=0: a model needs at least one class"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(name, options, message):
    with pytest.raises(InputError, match=message) as caught:
        models.build(name, **{"input_shape": (3, 32, 32), "num_classes": 10, **options})
    assert "\n" not in str(caught.value)


class TestBagOfWords:
    def test_padding_does_not_change_the_logits(self):
        model = make("text")
        short = torch.tensor([[5, 9, 7]])
        padded = torch.tensor([[5, 9, 7, 0, 0, 0]])
        assert torch.equal(model(short), model(padded))

    def test_the_order_of_words_does_not_matter(self):
        model = make("text")
        assert torch.allclose(model(torch.tensor([[5, 9, 7]])), model(torch.tensor([[7, 5, 9]])))

    def test_a_text_without_words_has_finite_logits(self):
        assert bool(torch.isfinite(make("text")(torch.zeros(1, 6, dtype=torch.int64))).all())

    def test_no_word_is_folded_onto_the_padding(self):
        model = models.BagOfWords(2, width=4, buckets=8)
        padding = model(torch.zeros(1, 1, dtype=torch.int64))
        for word in range(1, 30):
            assert not torch.equal(model(torch.tensor([[word]])), padding)
