"""Losses and metrics of the objectives, computed by hand on a handful of samples."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import sklearn.calibration
import sklearn.metrics
import torch
from torch import Tensor, nn

from fedspecial import InputError, Metric, Objective, objectives
from fedspecial.objectives import classification, multilabel, regression, segmentation
from fedspecial.objectives.base import Scoring, mean_scores


def logits(*probabilities: list[float]) -> Tensor:
    return torch.tensor(probabilities).log()


# Classes 0, 0, 0, 1: predicted 0, 0, 1, 1; probability of class 1: 0.1, 0.2, 0.7, 0.6.
SCORES, LABELS = logits([0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]), torch.tensor([0, 0, 0, 1])


def test_metrics_of_two_classes() -> None:
    found = classification.metrics(SCORES, LABELS)
    assert found["accuracy"] == 3 / 4
    assert found["per_class_accuracy"] == pytest.approx([2 / 3, 1])
    assert found["sensitivity"] == 1
    assert found["specificity"] == pytest.approx(2 / 3)
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1) / 2)
    # Class 0: precision 1, recall 2/3, so F1 is 4/5. Class 1: precision 1/2, recall 1, so F1 is 2/3.
    assert found["macro_f1"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    # Of the three pairs of one sample of each class, 0.6 is above 0.1 and 0.2, and below 0.7.
    assert found["auroc"] == pytest.approx(2 / 3)
    # Confidences 0.9, 0.8, 0.7, 0.6 are in four of the 15 bins; the third prediction is wrong.
    assert found["ece"] == pytest.approx((0.1 + 0.2 + 0.7 + 0.4) / 4, abs=1e-6)


def test_calibration_error_compares_the_means_of_a_bin() -> None:
    """Both confidences are in (0.6, 0.667]: their mean is 0.63, and one of two is correct."""
    found = classification.metrics(logits([0.62, 0.38], [0.64, 0.36]), torch.tensor([0, 1]))
    assert found["ece"] == pytest.approx(0.13, abs=1e-6)


def test_metrics_of_three_classes_one_of_which_is_absent() -> None:
    scores = logits([0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.5, 0.4])
    found = classification.metrics(scores, torch.tensor([0, 2, 2]))
    assert found["per_class_accuracy"] == [1, None, 0]
    assert found["balanced_accuracy"] == 1 / 2
    # Class 1 is predicted, so its F1 of 0 counts.
    assert found["macro_f1"] == pytest.approx(1 / 3)
    # Class 0: 0.7 is above 0.2 and 0.1. Class 2: 0.2 and 0.4 are above 0.1.
    assert found["auroc"] == 1
    assert "sensitivity" not in found


@pytest.mark.parametrize("step", [0.01, 0.5, 10], ids=["few equal scores", "many equal scores", "all scores equal"])
@pytest.mark.parametrize(("classes", "labels"), [(2, 2), (4, 4), (4, 3), (3, 5)])
def test_metrics_are_those_of_scikit_learn(classes: int, labels: int, step: float) -> None:
    """With classes that the domain lacks (4, 3), and with classes that the model does not know yet (3, 5)."""
    generator = torch.Generator().manual_seed(classes)
    scores = (torch.randn(200, classes, generator=generator) / step).round() * step
    truth = torch.randint(0, labels, (200,), generator=generator)
    found, predicted = classification.metrics(scores, truth), scores.argmax(1)
    with warnings.catch_warnings(action="ignore"):  # about classes that are never right and yet predicted
        assert found["balanced_accuracy"] == pytest.approx(sklearn.metrics.balanced_accuracy_score(truth, predicted))
    assert found["macro_f1"] == pytest.approx(sklearn.metrics.f1_score(truth, predicted, average="macro"))
    known = range(min(classes, labels))
    areas = [sklearn.metrics.roc_auc_score(truth == one, scores.double().softmax(1)[:, one]) for one in known]
    assert found["auroc"] == pytest.approx(sum(areas) / len(areas), rel=1e-12)
    confidence, correct = scores.double().softmax(1).amax(1), truth == predicted
    shares, means = sklearn.calibration.calibration_curve(correct, confidence, n_bins=15, pos_label=True)
    counts = np.bincount(np.digitize(confidence, np.linspace(0, 1, 16)[1:-1], right=True))
    assert found["ece"] == pytest.approx((counts[counts > 0] * abs(shares - means)).sum() / 200)


def test_auroc_of_a_single_class_is_not_defined() -> None:
    found = classification.metrics(SCORES, torch.zeros(4, dtype=torch.int64))
    assert found["auroc"] is None
    assert (found["sensitivity"], found["specificity"]) == (None, 1 / 2)


def test_classes_that_the_model_does_not_know_yet_are_not_recognised() -> None:
    found = classification.metrics(SCORES, torch.tensor([2, 2, 3, 3]))
    assert (found["accuracy"], found["balanced_accuracy"], found["auroc"]) == (0, 0, None)


def test_a_diverged_model_has_no_probabilities() -> None:
    found = classification.metrics(torch.full_like(SCORES, math.nan), LABELS)
    assert found["auroc"] is None
    assert found["ece"] is None


def test_within_a_task_the_accuracy_is_that_of_all_metrics() -> None:
    scores, labels = torch.randn(50, 4), torch.arange(50) % 4
    quick = objectives.find("classification").scoring(complete=False)
    parts = [quick.summarize(scores[:20], labels[:20]), quick.summarize(scores[20:], labels[20:])]
    assert quick.scores(quick.merge(parts))["accuracy"] == classification.metrics(scores, labels)["accuracy"]


def test_multilabel_metrics() -> None:
    scores = torch.tensor([[2.0, -1.0, 1.0], [-1.0, 3.0, 1.0], [1.0, 1.0, -1.0]])
    targets = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    found = multilabel.metrics(scores, targets)
    # The third label is there in every sample, so it has no ROC curve.
    assert found["per_label_auroc"] == [1, 1, None]
    assert found["auroc"] == 1
    assert found["label_accuracy"] == pytest.approx(6 / 9)
    # Labels 1 and 2: precision 1/2, recall 1. Label 3: precision 1, recall 2/3.
    assert found["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 4 / 5) / 3)
    assert multilabel.metrics(scores, torch.ones(3, 3))["auroc"] is None


def test_regression_metrics() -> None:
    found = regression.metrics(torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([1.0, 2.0, 3.0]))
    assert found["r2"] == pytest.approx(1 - 4 / 2)  # errors 0, 0, 2; deviations −1, 0, 1
    assert found["rmse"] == pytest.approx(math.sqrt(4 / 3))
    assert found["mae"] == pytest.approx(2 / 3)
    assert regression.metrics(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0]))["r2"] is None
    assert regression.metrics(torch.tensor([math.inf, 2.0]), torch.tensor([3.0, 4.0]))["r2"] is None


def test_regression_subtracts_targets_without_a_second_axis_sample_by_sample() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 5.0])
    assert regression.loss(model, (x, y)).item() == pytest.approx((1 + 1) / 2)
    with pytest.raises(InputError, match="outputs of shape 1 per sample, but the targets have 3"):
        regression.loss(model, (x, torch.zeros(2, 3)))


def test_segmentation_metrics_count_pixels_over_batches() -> None:
    masks = torch.tensor([[[0, 0], [0, 1]], [[1, 1], [255, 0]]])
    predicted = torch.tensor([[[0, 0], [1, 1]], [[1, 0], [1, 0]]])
    scores = nn.functional.one_hot(predicted, 3).permute(0, 3, 1, 2).float()
    scoring = objectives.find("segmentation").scoring(complete=True)
    found = scoring.scores(scoring.merge([scoring.summarize(scores[i : i + 1], masks[i : i + 1]) for i in (0, 1)]))
    # Of 7 pixels that count, class 0 has 4 of which 3 are found, class 1 has 3 of which 2 are found; no third class.
    assert found["pixel_accuracy"] == pytest.approx(5 / 7)
    assert found["per_class_iou"] == [pytest.approx(3 / 5), pytest.approx(2 / 4), None]
    assert found["mean_iou"] == pytest.approx((3 / 5 + 2 / 4) / 2)
    assert found["mean_dice"] == pytest.approx((6 / 8 + 4 / 6) / 2)
    nothing = torch.full((1, 2, 2), 255)
    assert segmentation.metrics(*segmentation.confusion(scores[:1], nothing))["mean_iou"] is None


def test_means_over_clients_leave_out_what_is_not_defined() -> None:
    parts = [{"a": 1.0, "b": None, "c": [1.0, None]}, {"a": 3.0, "b": 2.0, "c": [3.0, None]}, None]
    assert mean_scores(parts, [1, 3, 9]) == {"a": 2.5, "b": 2.0, "c": [2.5, None]}
    assert mean_scores([None], [1]) is None


def test_a_value_outside_the_declared_range_is_refused() -> None:
    scoring = Scoring(Metric("share"), lambda outputs, targets: {"share": 1.5})
    with pytest.raises(InputError, match=r"metric 'share': 1.5 is outside its declared range 0.0…1.0"):
        scoring.scores((torch.zeros(1), torch.zeros(1)))
    with pytest.raises(InputError, match="they lack the main metric 'other', only share"):
        Scoring(Metric("other"), scoring.metrics).scores((torch.zeros(1), torch.zeros(1)))


def test_nan_is_not_defined() -> None:
    scoring = Scoring(Metric("share"), lambda outputs, targets: {"share": math.nan, "each": [math.inf, 1]})
    assert scoring.scores((torch.zeros(1), torch.zeros(1))) == {"share": None, "each": [None, 1]}


def test_a_main_metric_that_is_lower_for_better_models_is_refused() -> None:
    with pytest.raises(InputError, match="metric 'error': the main metric must be higher where the model is better"):
        Metric("error", high=None, higher_is_better=False)


def test_an_unknown_objective_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"objective='regresion': there is no such.*did you mean 'regression'"):
        objectives.find("regresion")


@pytest.mark.parametrize("name", objectives.names())
def test_every_objective_has_a_description_and_a_range(name: str) -> None:
    found = objectives.find(name)
    assert isinstance(found, Objective)
    assert found.name == name
    assert objectives.describe(name)
    assert found.main.higher_is_better
