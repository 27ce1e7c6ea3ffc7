"""What every model here has in common: a penultimate feature and a linear head on top of it."""

from __future__ import annotations

from torch import Tensor, nn


class Classifier(nn.Module):
    """`forward` is ``fc(features(x))``.

    The seam is public because methods look at it: distillation and replay compare features, and a
    class-incremental run appends rows to `fc` while the features stay as they are.
    """

    fc: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        """The penultimate feature of each sample: (batch, fc.in_features)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.features(x))
        return logits
