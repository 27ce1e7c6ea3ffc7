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
    found: dict[str, Any] = accuracy(*count_correct(scores, labels))
    truth, predicted = labels.numpy(), scores.argmax(1).numpy()
    classes = max(scores.shape[1], 1 + int(truth.max()))  # where classes are added, the model may not know all yet
    of_class, as_class = np.bincount(truth, minlength=classes), np.bincount(predicted, minlength=classes)
    recognised = np.bincount(truth[truth == predicted], minlength=classes)
    present, used = of_class > 0, of_class + as_class > 0
    recall = recognised / np.maximum(of_class, 1)
    f1 = 2 * recognised / np.maximum(of_class + as_class, 1)
    per_class = [float(value) if here else None for value, here in zip(recall, present, strict=True)]
    found |= {"balanced_accuracy": recall[present].mean(), "macro_f1": f1[used].mean()}
    found |= _of_probabilities(scores.double().softmax(1).numpy(), truth, predicted, present)
    if classes == 2:
        found |= {"sensitivity": per_class[1], "specificity": per_class[0]}
    return found | {"per_class_accuracy": per_class}


def _of_probabilities(
    probabilities: np.ndarray, truth: np.ndarray, predicted: np.ndarray, present: np.ndarray
) -> dict[str, float | None]:
    """Metrics of the probabilities; a model that has diverged has none."""
    if not np.isfinite(probabilities).all():
        return {"auroc": None, "ece": None}
    classes = np.flatnonzero(present[: probabilities.shape[1]])
    auroc = None
    if len(classes) > 0 and present.sum() > 1:
        auroc = float(np.mean([_roc_area(truth == one, probabilities[:, one]) for one in classes]))
    return {"auroc": auroc, "ece": _calibration_error(probabilities.max(1), truth == predicted)}


def _roc_area(positive: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve, whose points are the distinct scores from the highest to the lowest.

    It is that of `sklearn.metrics.roc_auc_score`, whose checks of its input take as long as training a small model.
    """
    order = np.argsort(-score, kind="stable")
    positive, score = positive[order], score[order]
    last = np.append(np.flatnonzero(np.diff(score)), len(score) - 1)  # of the samples with the same score
    hits = np.cumsum(positive)[last]
    false_alarms = 1 + last - hits
    if len(last) > 2:  # corners only, so that the sum has few terms and little rounding
        corner = (np.diff(false_alarms, 2) != 0) | (np.diff(hits, 2) != 0)
        kept = np.concatenate([[True], corner, [True]])
        hits, false_alarms = hits[kept], false_alarms[kept]
    heights, widths = np.append(0, hits) / hits[-1], np.diff(np.append(0, false_alarms) / false_alarms[-1])
    return float((widths * (heights[1:] + heights[:-1]) / 2.0).sum())


def _calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Mean over bins, weighted by their samples, of |share correct − mean confidence|."""
    confidence = confidence.clip(0, 1)
    edges = np.linspace(0, 1, CALIBRATION_BINS + 1)
    bins = np.searchsorted(edges[1:-1], confidence)
    counts, right, total = (
        np.bincount(bins, weights=weights, minlength=CALIBRATION_BINS) for weights in (None, correct, confidence)
    )
    filled = counts > 0
    counts, share, mean = counts[filled], right[filled] / counts[filled], total[filled] / counts[filled]
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
