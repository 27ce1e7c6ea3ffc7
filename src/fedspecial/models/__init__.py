"""The models by name.

``build("cnn", input_shape=(3, 32, 32), num_classes=10, seed=25)`` gives the same weights on every call and
leaves torch's own generator where it was.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fedspecial.core.imports import is_object_name
from fedspecial.errors import InputError, did_you_mean
from fedspecial.models.classifier import Classifier
from fedspecial.models.custom import build_custom
from fedspecial.models.resnet import ResNet18
from fedspecial.models.small import CNN, MLP, Logistic
from fedspecial.models.text import BagOfWords
from fedspecial.models.transformer import Transformer

__all__ = [
    "CNN",
    "MLP",
    "BagOfWords",
    "Classifier",
    "Logistic",
    "ResNet18",
    "Transformer",
    "build",
    "describe",
    "names",
]

Shape = tuple[int, ...]


def build(
    name: str,
    *,
    input_shape: Shape,
    num_classes: int,
    width: int | None = None,
    seed: int = 0,
    encoder: str | None = None,
) -> nn.Module:
    """The model of that name, its weights drawn from `seed` alone.

    input_shape: one sample's shape: (channels, height, width), (features,) or (tokens,)
    width:       channels of the first layer or units of the hidden ones; None is the model's own default
    encoder:     whose weights a transformer starts from: a folder, an installed package or a name on the hub
    """
    if is_object_name(name):
        if encoder is not None:
            raise InputError(f"encoder={encoder}: only model 'transformer' has an encoder, not '{name}'")
        return build_custom(name, input_shape=tuple(input_shape), num_classes=num_classes, width=width, seed=seed)
    if name not in _DESCRIPTIONS:
        raise InputError(f"model={name}: not a known model{did_you_mean(name, names())}; known: {', '.join(names())}")
    if num_classes < 1:
        raise InputError(f"num_classes={num_classes}: a model needs at least one class")
    if width is not None and width < 1:
        raise InputError(f"width={width}: must be 1 or more")
    if encoder is not None and name != "transformer":
        raise InputError(f"encoder={encoder}: model '{name}' has none, only 'transformer' has")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # line 1: θ_0 depends on the seed alone
        if name == "transformer":
            return _transformer(tuple(input_shape), num_classes, width, encoder)
        return _BUILDERS[name](tuple(input_shape), num_classes, width)


def names() -> list[str]:
    """The models that `build` knows, the smallest first."""
    return list(_DESCRIPTIONS)


def describe(name: str) -> str:
    """One line about a model."""
    return _DESCRIPTIONS[name]


def _logistic(shape: Shape, num_classes: int, width: int | None) -> nn.Module:
    _features("logistic", shape)
    if width is not None:
        raise InputError(f"width={width}: model 'logistic' has no hidden layer, so it takes no width")
    return Logistic(shape, num_classes)


def _mlp(shape: Shape, num_classes: int, width: int | None) -> nn.Module:
    _features("mlp", shape)
    return MLP(shape, num_classes, width or 128)


def _cnn(shape: Shape, num_classes: int, width: int | None) -> nn.Module:
    return CNN(_channels("cnn", shape), num_classes, width or 16)


def _resnet18(shape: Shape, num_classes: int, width: int | None) -> nn.Module:
    return ResNet18(_channels("resnet18", shape), num_classes, width or 64)


def _text(shape: Shape, num_classes: int, width: int | None) -> nn.Module:
    _tokens("text", shape)
    return BagOfWords(num_classes, width or 64)


def _transformer(shape: Shape, num_classes: int, width: int | None, encoder: str | None) -> nn.Module:
    if encoder is None:
        raise InputError("model=transformer: say which one with encoder=… (a folder, an installed package, a hub name)")
    if width is not None:
        raise InputError(f"width={width}: model 'transformer' is as wide as its encoder, so it takes no width")
    return Transformer(encoder, num_classes, _tokens("transformer", shape))


def _features(name: str, shape: Shape) -> None:
    if not shape:
        raise InputError(f"model={name}: needs inputs of samples × features, but each is one number: x.reshape(-1, 1)")


def _tokens(name: str, shape: Shape) -> int:
    """How many token ids a text has."""
    if len(shape) != 1:
        raise InputError(f"model={name}: needs a row of token ids, but the inputs have shape {_written(shape)}")
    return shape[0]


def _channels(name: str, shape: Shape) -> int:
    """The channels of an image shape; other inputs cannot be convolved."""
    if len(shape) != 3:
        raise InputError(
            f"model={name}: needs images (channels×height×width), but the inputs have shape "
            f"{_written(shape)}; mlp and logistic take numbers of any shape, text takes token ids"
        )
    if min(shape[1:]) < 8:
        remedy = "; the channels come first" if shape[-1] in (1, 3, 4) and shape[1] >= 8 else ""
        raise InputError(
            f"model={name}: needs images of at least 8×8, but the inputs have shape {_written(shape)}{remedy}"
        )
    return shape[0]


def _written(shape: Shape) -> str:
    return "×".join(map(str, shape)) or "()"


_DESCRIPTIONS = {
    "logistic": "logistic regression on the flat input",
    "mlp": "two hidden layers of `width` units (128)",
    "cnn": "small convolutional network with BatchNorm, `width` first channels (16)",
    "resnet18": "ResNet-18 with the 7×7 stem, `width` first channels (64); 16 suits CPUs",
    "text": "bag of hashed words, `width` dimensions (64)",
    "transformer": "pretrained text encoder named by `encoder`; needs the extra 'text'",
}

_BUILDERS: dict[str, Callable[[Shape, int, int | None], nn.Module]] = {
    "logistic": _logistic,
    "mlp": _mlp,
    "cnn": _cnn,
    "resnet18": _resnet18,
    "text": _text,
}
