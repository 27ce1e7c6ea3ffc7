"""How values of the main metric are written: in per cent if its range is 0…1, as plain numbers otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NOT_DEFINED = "not defined"
TITLES = {
    "auroc": "AUROC",
    "ece": "ECE",
    "macro_f1": "macro F1",
    "mae": "MAE",
    "mean_iou": "mean IoU",
    "per_class_iou": "per-class IoU",
    "per_class_accuracy": "per-class accuracy",
    "per_label_auroc": "per-label AUROC",
    "r2": "R²",
    "rmse": "RMSE",
}


@dataclass(frozen=True)
class Scale:
    """Name and range of a metric; None where it has no limit."""

    name: str = "accuracy"
    low: float | None = 0.0
    high: float | None = 1.0

    @staticmethod
    def of(metric: Mapping[str, Any]) -> Scale:
        """From what the event of the run's start says about its main metric."""
        return Scale(metric["name"], metric["low"], metric["high"])

    @property
    def in_percent(self) -> bool:
        return (self.low, self.high) == (0, 1)

    @property
    def factor(self) -> int:
        return 100 if self.in_percent else 1

    @property
    def title(self) -> str:
        return title_of(self.name)

    @property
    def label(self) -> str:
        """The title with its unit, for axes and captions."""
        return f"{self.title} in per cent" if self.in_percent else self.title

    @property
    def unit(self) -> str:
        """What follows a value in running text."""
        return " %" if self.in_percent else ""

    def text(self, value: float | None, digits: int = 2) -> str:
        """A value; plain numbers get one more digit than per cent."""
        if value is None:
            return NOT_DEFINED
        return f"{self.factor * value:.{digits}f}" if self.in_percent else f"{value:.{digits + 1}f}"

    def change(self, value: float) -> str:
        """A difference of two values, with its sign."""
        return f"{self.factor * value:+.{2 if self.in_percent else 3}f}"

    def cell(self, value: float | None) -> str:
        """A value in a matrix."""
        return "–" if value is None else self.text(value, 1)


def title_of(metric: str) -> str:
    """The name of a metric for readers."""
    return TITLES.get(metric, metric.replace("_", " "))


ACCURACY = Scale()
