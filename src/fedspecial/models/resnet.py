"""ResNet-18 for images of any size (He et al., CVPR 2016), with the 7×7 stem of the ImageNet version.

The tensors bear torchvision's names (``conv1``, ``layer2.0.downsample.1``, ``fc``…), so a state dict saved
there loads here. With `width` 64 and ten classes there are 11,181,642 weights and 9,600 running statistics.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedspecial.models.classifier import Classifier
from fedspecial.models.pooling import HalvingMaxPool


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    """Without a bias: the BatchNorm that follows would cancel it."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _convolution(outputs, outputs, 3, 1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = torch.relu_(self.bn1(self.conv1(x)))
        return torch.relu_(self.bn2(self.conv2(out)).add_(shortcut))


class ResNet18(Classifier):
    """Stem, four stages of two blocks (`width`, 2, 4, 8 times `width` channels), mean over places, head."""

    def __init__(self, channels: int, num_classes: int, width: int = 64) -> None:
        super().__init__()
        self.conv1 = _convolution(channels, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = HalvingMaxPool(3)
        self.layer1 = _stage(width, width, 1)
        self.layer2 = _stage(width, 2 * width, 2)
        self.layer3 = _stage(2 * width, 4 * width, 2)
        self.layer4 = _stage(4 * width, 8 * width, 2)
        self.fc = nn.Linear(8 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu_(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean(dim=(2, 3))


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))
