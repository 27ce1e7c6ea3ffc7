"""Models small enough for a laptop's one core: logistic regression, a perceptron, a convolutional net."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedspecial.models.classifier import Classifier
from fedspecial.models.pooling import HalvingMaxPool


class Logistic(Classifier):
    """One linear layer on the flattened input: a convex problem, so what happens can be computed by hand."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(math.prod(input_shape), num_classes)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class MLP(Classifier):
    """Two hidden layers of `width` units on the flattened input."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int = 128) -> None:
        super().__init__()
        self.fc1 = nn.Linear(math.prod(input_shape), width)
        self.fc2 = nn.Linear(width, width)
        self.fc = nn.Linear(width, num_classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu_(self.fc2(torch.relu_(self.fc1(x.flatten(1)))))


class CNN(Classifier):
    """Three convolutions with BatchNorm and a hidden layer: 91 thousand weights at `width` 16.

    The image is halved twice before the second convolution, since a small net spends most of its time on its
    largest maps. 32×32 images end as 4×4 maps; those of other sizes are pooled to 4×4.
    """

    def __init__(self, channels: int, num_classes: int, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 5, stride=2, padding=2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.halve = HalvingMaxPool(2)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.hidden = nn.Linear(16 * 4 * width, 4 * width)
        self.fc = nn.Linear(4 * width, num_classes)

    def features(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.bn1(self.halve(self.conv1(x))))
        x = torch.relu_(self.bn2(self.conv2(x)))
        x = torch.relu_(self.bn3(self.conv3(x)))
        if x.shape[-2:] != (4, 4):
            x = self.pool(x)
        return torch.relu_(self.hidden(x.flatten(1)))
