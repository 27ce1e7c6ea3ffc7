"""Classification: cross-entropy, and the metrics of class scores. It is the default objective."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedspecial.core.forward import output_of, scores_of
from fedspecial.objectives.base import Batch, Metric, Objective, Scores, Scoring, Summary

CALIBRATION_BINS = 15
ACCURACY = Metric("accuracy")


def loss(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return cross_entropy(scores_of(output_of(model, x)), y)


def count_correct(scores: Tensor, labels: Tensor) -> Summary:
    """How many samples are classified correctly, and of how many."""
    return (scores.argmax(1) == labels).sum(), torch.tensor(len(labels), device=labels.device)


def accuracy(correct: Tensor, total: Tensor) -> Scores:
    return {"accuracy": int(correct) / int(total)}


def metrics(scores: Tensor, labels: Tensor) -> dict[str, Any]:
    """The metrics of a domain; a class that the domain lacks does not count, and what needs it is not defined.

    balanced_accuracy:       mean over classes of the share of their samples that is recognised
    macro_f1:                mean over classes of the harmonic mean of precision and recall
    auroc:                   area under the ROC curve, mean over classes, each against all others
    sensitivity, specificity: of two classes, the share recognised of the second and of the first
    per_class_accuracy:      the share of each class's samples that is recognised
    ece:                     expected calibration error, |confidence − accuracy| in 15 bins of the confidence
    """
    from sklearn.metrics import precision_recall_fscore_support

    found: dict[str, Any] = accuracy(*count_correct(scores, labels))
    truth, predicted = labels.numpy(), scores.argmax(1).numpy()
    classes = max(scores.shape[1], 1 + int(truth.max()))  # where classes are added, the model may not know all yet
    _, recall, f1, support = precision_recall_fscore_support(
        truth, predicted, labels=np.arange(classes), average=None, zero_division=0
    )
    present = support > 0
    per_class = [float(value) if here else None for value, here in zip(recall, present, strict=True)]
    used = present | (np.bincount(predicted, minlength=classes) > 0)
    found |= {"balanced_accuracy": recall[present].mean(), "macro_f1": f1[used].mean()}
    found |= _of_probabilities(scores.double().softmax(1).numpy(), truth, predicted, present)
    if classes == 2:
        found |= {"sensitivity": per_class[1], "specificity": per_class[0]}
    return found | {"per_class_accuracy": per_class}


def _of_probabilities(
    probabilities: np.ndarray, truth: np.ndarray, predicted: np.ndarray, present: np.ndarray
) -> dict[str, float | None]:
    """Metrics of the probabilities; a model that has diverged has none."""
    from sklearn.metrics import roc_auc_score

    if not np.isfinite(probabilities).all():
        return {"auroc": None, "ece": None}
    classes = np.flatnonzero(present[: probabilities.shape[1]])
    auroc = None
    if len(classes) > 0 and present.sum() > 1:
        auroc = float(roc_auc_score(truth[:, None] == classes, probabilities[:, classes], average="macro"))
    return {"auroc": auroc, "ece": _calibration_error(probabilities.max(1), truth == predicted)}


def _calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Mean over bins, weighted by their samples, of |share correct − mean confidence|."""
    from sklearn.calibration import calibration_curve

    confidence = confidence.clip(0, 1)
    share, mean = calibration_curve(correct.astype(np.int64), confidence, pos_label=1, n_bins=CALIBRATION_BINS)
    edges = np.linspace(0, 1, CALIBRATION_BINS + 1)
    counts = np.bincount(np.searchsorted(edges[1:-1], confidence), minlength=CALIBRATION_BINS)
    counts = counts[counts > 0]
    return float((counts * np.abs(share - mean)).sum() / counts.sum())


CLASSIFICATION = Objective(
    "classification",
    loss,
    metrics,
    ACCURACY,
    targets="classes",
    class_scores=True,
    within_task=Scoring(ACCURACY, accuracy, count_correct, additive=True),
)
