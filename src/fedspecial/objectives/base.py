"""An objective: the loss that clients minimise, and the metrics that say how well a domain is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedspecial.core.targets import TargetKind
from fedspecial.errors import InputError

Batch = tuple[Any, Tensor]
"""The inputs of a batch, as the model takes them, and the targets."""
Loss = Callable[[nn.Module, Batch], Tensor]
Summary = tuple[Tensor, ...]
Value = float | None | list[float | None]
"""A metric on one domain: a number, None where it is not defined, or one of these for each class."""
Scores = dict[str, Value]
"""Metrics by name."""


@dataclass(frozen=True)
class Metric:
    """The main metric of an objective, from which ACC, BWT and worst drop are computed. Higher is better.

    low, high: its range; None where it has no limit. Values in 0…1 are shown in per cent, others as they are.
    higher_is_better: must be true; use the negative of an error, or another metric
    """

    name: str
    low: float | None = 0.0
    high: float | None = 1.0
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if not self.higher_is_better:
            raise InputError(
                f"metric '{self.name}': the main metric must be higher where the model is better; use its negative"
            )

    def allows(self, value: float) -> bool:
        """Whether a value is in the range."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    @property
    def limits(self) -> str:
        """The range as a text."""
        return f"{'−∞' if self.low is None else self.low}…{'∞' if self.high is None else self.high}"


def keep(outputs: Any, targets: Tensor) -> Summary:
    """Outputs and targets as they are."""
    return outputs, targets


@dataclass(frozen=True)
class Scoring:
    """How predictions become metrics: each batch is summarised, summaries are merged, metrics are computed once.

    metrics:   summary of all samples → metrics by name, the main one among them
    summarize: (outputs, targets) of a batch → tensors
    additive:  summaries of batches are added; otherwise they are concatenated
    """

    main: Metric
    metrics: Callable[..., Mapping[str, Any]]
    summarize: Callable[[Any, Tensor], Summary] = keep
    additive: bool = False

    def merge(self, parts: Sequence[Summary]) -> Summary:
        """The summary of all parts, in their order."""
        columns = zip(*parts, strict=True)
        if self.additive:
            return tuple(torch.stack(column).sum(0) for column in columns)
        return tuple(torch.cat(column) for column in columns)

    def scores(self, summary: Summary) -> Scores:
        """The metrics; NaN and infinity are not defined, and the main metric must be in its range."""
        found = self.metrics(*summary)
        if self.main.name not in found:
            raise InputError(f"metrics: they lack the main metric '{self.main.name}', only {', '.join(found)}")
        scores = {name: _value(value) for name, value in found.items()}
        main = scores[self.main.name]
        if isinstance(main, list):
            raise InputError(f"metric '{self.main.name}': the main metric is one number, not {len(main)}")
        if main is not None and not self.main.allows(main):
            raise InputError(f"metric '{self.main.name}': {main:g} is outside its declared range {self.main.limits}")
        return scores


@dataclass(frozen=True)
class Objective:
    """What is learned: a loss and metrics. Pass one of your own as ``fedspecial.run(objective=…)``.

    loss:    (model, batch) → the loss of a batch, a scalar; a batch is the pair (inputs, targets)
    metrics: (outputs, targets) of all test samples of a domain → metrics by name
    main:    which metric the matrix, ACC, BWT and worst drop are computed from, and its range
    targets: what the targets are; "any" leaves them as they are
    summarize, additive: reduce each batch before all are put together, where all outputs would need too much memory;
             `metrics` then gets the tensors that `summarize` returns, added up or concatenated
    class_scores: whether the model's outputs are scores of classes, which some methods need
    within_task: cheaper scoring for evaluations within a task, which need only the main metric
    """

    name: str
    loss: Loss
    metrics: Callable[..., Mapping[str, Any]]
    main: Metric
    targets: TargetKind = "any"
    summarize: Callable[[Any, Tensor], Summary] = keep
    additive: bool = False
    class_scores: bool = False
    within_task: Scoring | None = field(default=None)

    @property
    def counts_correct(self) -> bool:
        """Whether the main metric is the share of correct predictions, so that counts of several sites can be added."""
        return self.targets == "classes" and self.main.name == "accuracy"

    def scoring(self, *, complete: bool) -> Scoring:
        """complete: all metrics; otherwise at least the main one"""
        if self.within_task is not None and not complete:
            return self.within_task
        return Scoring(self.main, self.metrics, self.summarize, self.additive)


def mean_scores(parts: Sequence[Scores | None], weights: Sequence[float]) -> Scores | None:
    """The weighted mean of each metric over clients or sites, where it is defined; None if there are no scores."""
    pairs = [(scores, weight) for scores, weight in zip(parts, weights, strict=True) if scores is not None]
    names = dict.fromkeys(name for scores, _ in pairs for name in scores)
    if not pairs:
        return None
    return {name: _mean([(scores[name], weight) for scores, weight in pairs if name in scores]) for name in names}


def _mean(pairs: Sequence[tuple[Value, float]]) -> Value:
    lists = [(value, weight) for value, weight in pairs if isinstance(value, list)]
    if lists:
        columns = range(max(len(value) for value, _ in lists))
        return [_number_mean([(value[at], weight) for value, weight in lists if at < len(value)]) for at in columns]
    return _number_mean([(value, weight) for value, weight in pairs if not isinstance(value, list)])


def _number_mean(pairs: Sequence[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in pairs if value is not None]
    total, weights = 0.0, 0.0
    for value, weight in known:  # one addition after another, so that all versions of Python give the same sum
        total, weights = total + value * weight, weights + weight
    return total / weights if weights else None


def _value(value: Any) -> Value:
    if value is None or isinstance(value, float | int):
        return _number(value)
    if hasattr(value, "tolist"):  # arrays and tensors
        value = value.tolist()
    return [_number(part) for part in value] if isinstance(value, list | tuple) else _number(value)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
