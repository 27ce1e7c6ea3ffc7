"""ResNet-18 has the published numbers of weights, parameter names and initialisation."""

import math

import pytest
import torch

from fedspecial.models import build

STAGES = range(1, 5)


def resnet(width=64, classes=10, seed=0):
    return build("resnet18", input_shape=(3, 32, 32), num_classes=classes, width=width, seed=seed)


def running_statistics(model):
    return sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point())


def published_names():
    """The keys of torchvision's state dict, derived from its structure."""

    def norm(layer):
        return [f"{layer}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    names = ["conv1.weight", *norm("bn1")]
    for stage in STAGES:
        for block in (0, 1):
            prefix = f"layer{stage}.{block}"
            names += [
                f"{prefix}.conv1.weight",
                *norm(f"{prefix}.bn1"),
                f"{prefix}.conv2.weight",
                *norm(f"{prefix}.bn2"),
            ]
            if stage > 1 and block == 0:
                names += [f"{prefix}.downsample.0.weight", *norm(f"{prefix}.downsample.1")]
    return [*names, "fc.weight", "fc.bias"]


@pytest.mark.parametrize(
    ("classes", "mebibytes"),
    [(10, 42.691), (5, 42.681), (7, 42.685), (100, 42.867)],
    ids=lambda value: str(value),
)
def test_weights_and_running_statistics_take_the_published_memory(classes, mebibytes):
    model = resnet(classes=classes)
    floats = sum(weight.numel() for weight in model.parameters()) + running_statistics(model)
    assert round(4 * floats / 2**20, 3) == mebibytes


def test_ten_classes_have_11181642_weights_and_9600_running_statistics():
    model = resnet()
    assert sum(weight.numel() for weight in model.parameters()) == 11_181_642
    assert running_statistics(model) == 9_600


def test_state_dict_names_are_torchvisions_in_its_order():
    assert list(resnet(width=4).state_dict()) == published_names()


def test_a_thousand_class_state_dict_has_the_shapes_of_the_imagenet_weights():
    shapes = {name: tuple(value.shape) for name, value in resnet(classes=1000).state_dict().items()}
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer1.0.conv1.weight"] == (64, 64, 3, 3)
    assert shapes["layer3.0.downsample.0.weight"] == (256, 128, 1, 1)
    assert shapes["layer4.1.bn2.running_var"] == (512,)
    assert shapes["fc.weight"] == (1000, 512)


@pytest.mark.parametrize("size", [28, 32, 64, 224])
def test_any_image_size_gives_one_feature_per_channel_of_the_last_stage(size):
    model = resnet(width=4).eval()
    x = torch.zeros(2, 3, size, size)
    with torch.no_grad():
        assert model.features(x).shape == (2, 32)
        assert model(x).shape == (2, 10)


def test_convolutions_start_with_kaimings_variance_over_the_fan_out():
    model = resnet()
    for weight in (model.conv1.weight, model.layer3[1].conv2.weight, model.layer4[0].downsample[0].weight):
        fan_out = weight.shape[0] * weight.shape[2] * weight.shape[3]
        assert math.isclose(weight.std().item(), math.sqrt(2 / fan_out), rel_tol=0.03)


def test_a_quarter_of_the_width_has_a_sixteenth_of_the_weights():
    narrow = sum(weight.numel() for weight in resnet(width=16).parameters())
    assert 1 / 17 < narrow / 11_181_642 < 1 / 15
