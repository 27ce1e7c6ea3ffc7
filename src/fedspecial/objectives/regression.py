"""Regression: the mean squared error of one or several real outputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fedspecial.core.forward import output_of, scores_of
from fedspecial.errors import InputError
from fedspecial.objectives.base import Batch, Metric, Objective


def loss(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return mse_loss(_as_targets(scores_of(output_of(model, x)), y), y)


def metrics(outputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """The metrics of a domain.

    r2:   R², the share of the targets' variance that is explained, mean over outputs; negative where the mean of the
          targets would be better, and not defined where the targets do not vary
    rmse: root of the mean squared error · mae: mean absolute error
    """
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    outputs = _as_targets(outputs, targets)
    if not bool(outputs.isfinite().all()):
        return {"r2": None, "rmse": None, "mae": None}
    truth, predicted = (values.double().flatten(1 if values.dim() > 1 else 0).numpy() for values in (targets, outputs))
    return {
        "r2": r2_score(truth, predicted) if (truth != truth[0]).any(0).all() else None,
        "rmse": root_mean_squared_error(truth, predicted),
        "mae": mean_absolute_error(truth, predicted),
    }


def _as_targets(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs (n, 1) for targets (n,): subtracted as they are, they would make an n × n table."""
    if outputs.shape == targets.shape:
        return outputs
    if outputs.numel() != targets.numel():
        shapes = ("×".join(map(str, values.shape[1:])) or "1" for values in (outputs, targets))
        raise InputError("model: it has outputs of shape {} per sample, but the targets have {}".format(*shapes))
    return outputs.view_as(targets)


REGRESSION = Objective("regression", loss, metrics, Metric("r2", low=None, high=1.0), targets="values")
