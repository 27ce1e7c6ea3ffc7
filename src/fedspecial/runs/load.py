"""The model of a finished run, ready to predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedspecial.config import Config, check_common, is_given_object
from fedspecial.core.forward import Inputs, output_of, scores_of, with_dtype
from fedspecial.core.statistics_bank import BankedModule, StatisticsBank, split_sets
from fedspecial.data.input_arrays import check_finite, normalised, scale_and_shift
from fedspecial.data.read_on_demand import DatasetInputs, NestedInputs, array_inputs
from fedspecial.data.samples import Samples
from fedspecial.data.schema import DataSchema
from fedspecial.engine.evaluate import EVAL_BATCH
from fedspecial.engine.head import wider_head
from fedspecial.errors import InputError
from fedspecial.runs import directory
from fedspecial.runs.devices import one_at_a_time, ordinary_torch
from fedspecial.runs.model_files import load_state, read_model
from fedspecial.runs.modules import GivenModel, initial_module
from fedspecial.runs.objects import Objects


@dataclass(frozen=True)
class FilePredictions:
    """Predictions for some inputs of files; `names`: of each input, its file, or the file and the row."""

    names: tuple[str, ...]
    values: Tensor


@dataclass(frozen=True)
class TrainedModel:
    """The model of a finished run.

    module:    the trained network, in evaluation mode; with `batch_norm=bank`, it uses the statistics of all tasks
    schema:    what it was trained on: kind of data, input shape, normalisation, columns or tokens
    objective: the name of the objective it was trained for; "classification" gives probabilities of the classes
    """

    folder: Path
    module: nn.Module
    schema: DataSchema
    objective: str = "classification"

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, in the order of the outputs."""
        return self.schema.classes

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """The shape of one input."""
        return self.schema.input_shape

    def predict(self, inputs: Any) -> Tensor:
        """One row per input: the probabilities of the classes, or the outputs where the targets are not classes.

        Args:
            inputs: an array or tensor (uint8 images are normalised as in training), several of them in a tuple or a
                dict, if the model takes several, or the samples of a domain: ``domain.test``.
        """
        parts = [self._scores(self._prepared(batch)) for batch in _batches(self._checked(inputs))]
        return self._activated(torch.cat(parts) if parts else torch.empty(0))

    def predict_files(self, files: Sequence[str | Path]) -> Iterator[FilePredictions]:
        """Predictions for image files or folders, CSV files or JSON lines, with the preprocessing of the training."""
        from fedspecial.data.inputs import read_inputs

        for batch in read_inputs(self.schema, [Path(file) for file in files]):
            yield FilePredictions(batch.names, self._activated(self._scores(batch.x)))

    @torch.inference_mode()
    def _scores(self, inputs: Inputs) -> Tensor:
        dtype = next((w.dtype for w in self.module.parameters() if w.is_floating_point()), torch.float32)
        inputs = inputs if dtype == torch.float32 else with_dtype(inputs, dtype)
        return scores_of(output_of(self.module, inputs)).float()

    def _activated(self, scores: Tensor) -> Tensor:
        if self.objective == "classification":
            return scores.softmax(1) if len(scores) else scores
        return scores.sigmoid() if self.objective == "multilabel" else scores

    def _checked(self, inputs: Any) -> Any:
        """The inputs as tensors, of the shape and the type that the model was trained on, without missing values."""
        x: Any = inputs.x if isinstance(inputs, Samples) else inputs
        x = x if isinstance(x, NestedInputs | DatasetInputs) else array_inputs(x)
        if not isinstance(x, Tensor):
            return x
        shape, dtype = self.input_shape, self.schema.dtype
        if shape is not None and tuple(x.shape[1:]) != shape:
            raise InputError(f"inputs: shape {tuple(x.shape)}; the model of {self.folder} takes a batch of {shape}")
        whole = not x.is_floating_point() and str(x.dtype) != f"torch.{dtype}"
        if whole and dtype == "uint8":
            kind = str(x.dtype).removeprefix("torch.")
            raise InputError(f"inputs: {kind}; the model of {self.folder} takes images of type uint8, from 0 to 255")
        x = x.float() if whole and dtype == "float32" else x
        if self.schema.table is not None:  # as in a file that is read: see `fedspecial.data.inputs`
            x = torch.where(x.isnan(), torch.tensor(self.schema.table.fill or 0.0), x)
        if x.is_floating_point():
            check_finite(x, "inputs", missing_allowed=False)
        return x

    def _prepared(self, batch: Inputs) -> Inputs:
        if not isinstance(batch, Tensor):
            return batch
        mean, std = self.schema.mean, self.schema.std
        if batch.dtype == torch.uint8 and mean is not None and std is not None:
            return normalised(batch, *scale_and_shift(mean, std))
        return batch


def load(folder: str | Path, *, model: GivenModel | None = None) -> TrainedModel:
    """The trained model of a finished run, with its classes and its preprocessing.

    Args:
        folder: the run directory.
        model: the module or function that was passed to `run`, if one was; objects are not saved, only their weights.

    Returns:
        The model; ``.predict(inputs)`` gives probabilities, ``.module`` is the network.

    Examples:
        >>> import fedspecial
        >>> trained = fedspecial.load("runs/digits-shift-special-001")  # doctest: +SKIP
        >>> trained.predict(images).argmax(1)  # doctest: +SKIP
    """
    folder = Path(folder)
    recorded = directory.settings(folder)
    Objects.of(None, model, None).check_complete(
        {"model": recorded.get("model")}, f"fedspecial.load({str(folder)!r}, …)"
    )
    _check_common_model(str(recorded.get("method", Config().method)))
    if recorded.get("bank_choice") == "task":
        raise InputError("bank_choice=task: it needs the task of every sample, which a prediction does not know")
    state, sets = split_sets(read_model(folder))
    schema = DataSchema.read(folder)
    config = check_common({key: value for key, value in recorded.items() if key in Config.model_fields})
    with one_at_a_time(), ordinary_torch():
        module = _untrained(config, schema, state, model)
    load_state(folder, module, state)
    if sets:
        named = {
            name: torch.stack([*(one[name] for one in sets.values()), state[name]])
            for name in next(iter(sets.values()))
        }
        module = BankedModule(module, StatisticsBank.of_rows(module, named, config.bank_temperature))
    objective = recorded.get("objective", "classification")
    return TrainedModel(folder, module.eval(), schema, "own" if is_given_object(objective) else str(objective))


def _untrained(config: Config, schema: DataSchema, state: dict[str, Tensor], model: GivenModel | None) -> nn.Module:
    """The network as the run made it, with as many outputs as it has in the end."""
    outputs = state["fc.weight"].shape[0] if "fc.weight" in state else len(schema.classes or ())
    unweighted = config.model_copy(update={"weights": None})
    module = initial_module(unweighted, cast("tuple[int, ...]", schema.input_shape), outputs, model)
    if model is not None and isinstance(getattr(module, "fc", None), nn.Linear):
        wider_head(module, outputs, config.seed, 1)  # it may have grown in a class-incremental run
    return module


def _check_common_model(method: str) -> None:
    """Refuse methods whose clients predict with models or states of their own."""
    from fedspecial import methods

    if methods.find(method).personal:
        raise InputError(f"method={method}: every client predicts in its own way, so there is no common model to load")


def _batches(x: Any) -> Iterator[Inputs]:
    """Parts of at most `EVAL_BATCH` inputs; a data set is read part by part."""
    for at in range(0, len(x), EVAL_BATCH):
        yield x[at : at + EVAL_BATCH].to(torch.device("cpu"))
