"""A perceptron whose inputs pass through BatchNorm without weights, so that a bank has statistics of inputs to keep.

    fedspecial run heart method=special-plus model=examples/anchors/input_norm.py:InputNorm

A model without BatchNorm gives `batch_norm=bank` nothing to keep. With this layer, each task has a mean and a variance
of every input, and a sample is normalised with those that fit it. Clients upload these statistics with their updates,
as every client of a model with BatchNorm does. Tried and rejected: docs/science/anchor.md.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from fedspecial.models.small import MLP


class InputNorm(MLP):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int = 32) -> None:
        super().__init__(input_shape, num_classes, width)
        self.norm = nn.BatchNorm1d(math.prod(input_shape), affine=False)

    def features(self, x: Tensor) -> Tensor:
        return super().features(self.norm(x.flatten(1)))
