"""Several labels per sample: binary cross-entropy of each label. The targets are 0 or 1 for each label."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedspecial.core.forward import output_of, scores_of
from fedspecial.objectives.base import Batch, Metric, Objective


def loss(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return binary_cross_entropy_with_logits(scores_of(output_of(model, x)), y)


def metrics(scores: Tensor, targets: Tensor) -> dict[str, Any]:
    """The metrics of a domain; a label that all of its samples have, or none, has no ROC curve and does not count.

    auroc:           area under the ROC curve, mean over labels
    macro_f1:        mean over labels of the harmonic mean of precision and recall, where a score above 0 means yes
    label_accuracy:  share of all labels of all samples that are right
    per_label_auroc: area under the ROC curve of each label
    """
    from sklearn.metrics import f1_score, roc_auc_score

    truth, predicted = targets.numpy() > 0.5, (scores > 0).numpy()
    share = truth.mean(0)
    defined = np.flatnonzero((share > 0) & (share < 1))
    areas: list[float | None] = [None] * truth.shape[1]
    if bool(scores.isfinite().all()):
        for label in defined:
            areas[label] = float(roc_auc_score(truth[:, label], scores[:, label].double().numpy()))
    known = [area for area in areas if area is not None]
    return {
        "auroc": sum(known) / len(known) if known else None,
        "macro_f1": f1_score(truth, predicted, average="macro", zero_division=0),
        "label_accuracy": (truth == predicted).mean(),
        "per_label_auroc": areas,
    }


MULTILABEL = Objective("multilabel", loss, metrics, Metric("auroc"), targets="indicators")
