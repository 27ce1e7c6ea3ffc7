"""Segmentation: cross-entropy of each pixel. Outputs (n, classes, height, width), targets (n, height, width)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedspecial.core.forward import output_of, scores_of
from fedspecial.core.targets import IGNORED
from fedspecial.objectives.base import Batch, Metric, Objective, Summary


def loss(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return cross_entropy(scores_of(output_of(model, x)), y, ignore_index=IGNORED)


def confusion(scores: Tensor, masks: Tensor) -> Summary:
    """Counts of pixels: row, true class; column, predicted class. All masks would need too much memory."""
    classes = scores.shape[1]
    counted = masks != IGNORED
    pairs = masks[counted] * classes + scores.argmax(1)[counted]
    return (torch.bincount(pairs, minlength=classes**2).view(classes, classes),)


def metrics(counts: Tensor) -> dict[str, Any]:
    """The metrics of a domain; a class that is neither there nor predicted does not count.

    mean_iou:       mean over classes of intersection over union of the true and the predicted pixels
    mean_dice:      the same for the Dice coefficient, which is the F1 of the pixels
    pixel_accuracy: share of the pixels that are right
    per_class_iou:  intersection over union of each class
    """
    from sklearn.metrics import accuracy_score, f1_score, jaccard_score

    table = counts.numpy()
    used = np.flatnonzero(table.sum(0) + table.sum(1))
    per_class: list[float | None] = [None] * len(table)
    if not len(used):
        return {"mean_iou": None, "mean_dice": None, "pixel_accuracy": None, "per_class_iou": per_class}
    # Each cell of the table is one entry that is as heavy as its pixels, so that no pixel has to be kept.
    truth, predicted = (part.ravel() for part in np.indices(table.shape))
    options: dict[str, Any] = {"sample_weight": table.ravel(), "labels": used, "average": None, "zero_division": 0}
    areas = jaccard_score(truth, predicted, **options)
    for label, area in zip(used, areas, strict=True):
        per_class[label] = float(area)
    return {
        "mean_iou": areas.mean(),
        "mean_dice": f1_score(truth, predicted, **options).mean(),
        "pixel_accuracy": accuracy_score(truth, predicted, sample_weight=table.ravel()),
        "per_class_iou": per_class,
    }


SEGMENTATION = Objective(
    "segmentation", loss, metrics, Metric("mean_iou"), targets="masks", summarize=confusion, additive=True
)
