"""What the targets of a problem are. Data and objectives both need it."""

from __future__ import annotations

from typing import Literal

TargetKind = Literal["classes", "indicators", "values", "masks", "any"]
"""classes:    one class per sample, int64 (n,)
indicators: for each sample and label 0 or 1, float32 (n, labels)
values:     real numbers, float32 (n,) or (n, outputs)
masks:      one class per pixel, int64 (n, height, width); 255 marks pixels that do not count
any:        whatever the user's own objective works with"""

IGNORED = 255
"""The value of pixels of a mask that do not count."""
