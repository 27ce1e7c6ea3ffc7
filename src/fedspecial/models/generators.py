"""Networks that make images: FedCIL's pair of generator and critic, MFCL's data-free generator.

The noise is an argument, `latent` numbers an image, so a generator draws nothing by itself. An image whose sides
are no multiple of the network's step is made at the next multiple and resized bilinearly.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedspecial.errors import InputError

Size = tuple[int, int]

LARGEST = 64
"""The largest side of FedCIL's images unless the method's `gan_size` is another: larger ones are slow and poor."""


def conditional_generator(
    input_shape: tuple[int, ...], num_classes: int, width: int = 64, latent: int | None = None
) -> ConditionalGenerator:
    """FedCIL's generator for images of that shape."""
    channels, size = _image(input_shape)
    _at_least(1, num_classes=num_classes, width=width)
    latent = latent_size(num_classes) if latent is None else latent
    if latent <= num_classes:
        raise InputError(f"latent={latent}: must exceed num_classes={num_classes}, the label takes the first entries")
    return ConditionalGenerator(latent, num_classes, channels, _grid(size, 8), size, width)


def critic(input_shape: tuple[int, ...], num_classes: int, width: int = 64) -> Critic:
    """FedCIL's critic of images of that shape."""
    channels, (height, breadth) = _image(input_shape)
    _at_least(1, num_classes=num_classes, width=width)
    return Critic(channels, (height // 8) * (breadth // 8), num_classes, width)


def data_free_generator(input_shape: tuple[int, ...], width: int = 128, latent: int = 1000) -> DataFreeGenerator:
    """MFCL's generator for images of that shape: doubled twice up to 32 pixels, three times up to 64, else five times.

    Each of the three sizes has its own published network; the largest has half the channels throughout.
    """
    channels, size = _image(input_shape)
    _at_least(2, width=width)
    _at_least(1, latent=latent)
    doublings = 2 if max(size) <= 32 else 3 if max(size) <= 64 else 5
    half = width // 2
    plan = [half] * 6 if doublings == 5 else [width] * doublings + [half]
    return DataFreeGenerator(latent, channels, _grid(size, 2**doublings), size, plan)


def latent_size(num_classes: int) -> int:
    """Numbers that a conditional generator starts from: 100, and room for the label where it needs more than ten."""
    return 100 if num_classes <= 10 else 100 + num_classes


class ConditionalGenerator(nn.Module):
    """G(z, y) ∈ [−1, 1] of FedCIL (Qi, Zhao and Li, ICLR 2023): the first C entries of z become the one-hot label y.

    A `grid` of 8·`width` channels is doubled three times while its channels are halved.
    For 3×32×32 and ten classes there are 3,584,003 weights.
    """

    def __init__(self, latent: int, num_classes: int, channels: int, grid: Size, size: Size, width: int) -> None:
        super().__init__()
        self.latent, self.num_classes, self.size = latent, num_classes, size
        self.body = nn.Sequential(
            nn.Linear(latent, 8 * width * math.prod(grid)),
            nn.Unflatten(1, (8 * width, *grid)),
            nn.BatchNorm2d(8 * width),
            nn.ReLU(inplace=True),
            *_doubled(8 * width, 4 * width),
            *_doubled(4 * width, 2 * width),
            *_doubled(2 * width, width),
            nn.ConvTranspose2d(width, channels, 3, padding=1),
            nn.Tanh(),
        )
        _start(self)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        return _resized(self.body(self.conditioned(z, labels)), self.size)

    def conditioned(self, z: Tensor, labels: Tensor) -> Tensor:
        """The noise with its first entries overwritten by the one-hot labels."""
        return torch.cat((functional.one_hot(labels, self.num_classes).to(z.dtype), z[:, self.num_classes :]), dim=1)


class Critic(nn.Module):
    """D(x) of FedCIL: a logit for "real" and C class logits. For 3×32×32 and ten classes there are 704,843 weights."""

    def __init__(self, channels: int, places: int, num_classes: int, width: int) -> None:
        super().__init__()
        widths = (channels, width, 2 * width, 4 * width)
        self.convs = nn.ModuleList(nn.Conv2d(*pair, 4, stride=2, padding=1) for pair in pairwise(widths))
        # The published critic carries these norms without applying them; they are kept so that its size is the
        # published one, and frozen so that they get no gradients.
        self.unused = nn.ModuleList(nn.BatchNorm2d(count, track_running_stats=False) for count in widths[1:])
        self.unused.requires_grad_(False)
        self.real = nn.Linear(4 * width * places, 1)
        self.classes = nn.Linear(4 * width * places, num_classes)
        _start(self)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(batch,) logits of being real and (batch, C) class logits."""
        for conv in self.convs:
            x = functional.leaky_relu_(conv(x), 0.2)
        x = x.flatten(1)
        return self.real(x).squeeze(1), self.classes(x)


class DataFreeGenerator(nn.Module):
    """G(z) of MFCL (Babakniya et al., NeurIPS 2023), in the space of normalised images.

    A `grid` of plan[0] channels is doubled and convolved to plan[1], plan[2], … channels. The last norm has no
    weights, so a batch has mean 0 and variance 1 in each channel, as normalised images have.
    For 3×32×32 there are 8,423,939 weights.
    """

    def __init__(self, latent: int, channels: int, grid: Size, size: Size, plan: list[int]) -> None:
        super().__init__()
        self.latent, self.size = latent, size
        self.body = nn.Sequential(
            nn.Linear(latent, plan[0] * math.prod(grid)),
            nn.Unflatten(1, (plan[0], *grid)),
            nn.BatchNorm2d(plan[0]),
            *(layer for pair in pairwise(plan) for layer in _upsampled(*pair)),
            nn.Conv2d(plan[-1], channels, 3, padding=1),
            nn.Tanh(),
        )
        self.norm = nn.BatchNorm2d(channels, affine=False)

    def forward(self, z: Tensor) -> Tensor:
        images: Tensor = self.norm(_resized(self.body(z), self.size))
        return images


class UpsampledConv2d(nn.Conv2d):
    """A 3×3 convolution of the image doubled by repeating each pixel, without making the doubled image.

    A repeated pixel meets sums of neighbouring weights. With these as the 4×4 kernel of a transposed convolution of
    stride 2 the result is the same for 4/9 of the multiplications, in less than half the time.
    """

    def forward(self, x: Tensor) -> Tensor:
        sums = functional.pad(self.weight, (1, 1, 1, 1))
        sums = sums[..., 1:, :] + sums[..., :-1, :]
        sums = sums[..., 1:] + sums[..., :-1]
        return functional.conv_transpose2d(x, sums.flip(2, 3).transpose(0, 1), self.bias, stride=2, padding=1)


def _doubled(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    conv = nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1)
    return conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)


def _upsampled(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """The norm's eps of 0.8 is the published network's; it damps channels that hardly vary."""
    conv = UpsampledConv2d(inputs, outputs, 3, padding=1)
    return conv, nn.BatchNorm2d(outputs, eps=0.8), nn.LeakyReLU(0.2, inplace=True)


def _start(module: nn.Module) -> None:
    """Weights from N(0, 0.02²), biases zero; norms start as the identity."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d | nn.ConvTranspose2d) and part.bias is not None:
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)


def _resized(images: Tensor, size: Size) -> Tensor:
    if images.shape[-2:] == size:
        return images
    return functional.interpolate(images, size=size, mode="bilinear", align_corners=False)


def _grid(size: Size, step: int) -> Size:
    """The smallest grid that covers the image when each of its places becomes step×step pixels."""
    return math.ceil(size[0] / step), math.ceil(size[1] / step)


def _image(shape: tuple[int, ...]) -> tuple[int, Size]:
    """Channels and size of an image shape."""
    if len(shape) != 3 or min(shape[1:]) < 8 or shape[0] < 1:
        written = "×".join(map(str, shape)) or "()"
        raise InputError(f"input_shape={written}: only images (channels×height×width) of at least 8×8 can be generated")
    return shape[0], (shape[1], shape[2])


def _at_least(lowest: int, **settings: int) -> None:
    for name, value in settings.items():
        if value < lowest:
            raise InputError(f"{name}={value}: must be {lowest} or more")
