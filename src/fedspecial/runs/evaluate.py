"""Accuracy of a finished model on the domains of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedspecial.config import (
    Config,
    RunSettings,
    Settings,
    check_common,
    merge_settings,
    refuse_data_settings,
    resolve,
)
from fedspecial.core.messages import Broadcast
from fedspecial.core.statistics_bank import split_sets
from fedspecial.data.benchmark import Benchmark
from fedspecial.data.matching import match
from fedspecial.data.samples import Domain
from fedspecial.data.schema import DataSchema
from fedspecial.engine import bank
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.engine.base import Engine
from fedspecial.engine.checkpoint import Checkpoint, Checkpointer
from fedspecial.engine.clients.client import ClientRunner
from fedspecial.engine.clients.client_states import ClientStates
from fedspecial.engine.clients.payloads import PayloadTracker
from fedspecial.engine.evaluate import main_values
from fedspecial.engine.inprocess import InProcess
from fedspecial.errors import InputError
from fedspecial.methods.base import Method
from fedspecial.objectives.base import Objective
from fedspecial.runs import directory
from fedspecial.runs.build import assemble
from fedspecial.runs.data import apply_sites, load_benchmark, make_federation
from fedspecial.runs.devices import one_at_a_time, torch_settings
from fedspecial.runs.model_files import load_state, read_model
from fedspecial.runs.modules import GivenModel, make_module
from fedspecial.runs.objects import Objects


def evaluate(
    folder: str | Path,
    benchmark: str | Benchmark | Sequence[Domain] | None = None,
    *,
    model: GivenModel | None = None,
    method: Method | None = None,
    objective: Objective | None = None,
    **settings: Any,
) -> dict[str, float]:
    """Test the model of a finished run on the domains of a benchmark, by default those it was trained on.

    Args:
        folder: the run directory.
        benchmark: other data to test on: a name, ``file.py:function``, a `Benchmark`, or a list of `Domain`.
        model: the module or function that was passed to `run`, if one was; objects are not saved.
        method: the object that was passed to `run`, if one was; not needed if its class can be imported.
        objective: the object that was passed to `run`, if one was.
        **settings: settings of the data, such as ``domains="photo"`` or ``data="/data"``.

    Returns:
        The accuracy on each domain, between 0 and 1; with another objective, its main metric.

    Examples:
        >>> import fedspecial
        >>> fedspecial.evaluate("runs/digits-shift-special-001", domains="photo")  # doctest: +SKIP
        {'photo': 0.83}
    """
    folder = Path(folder)
    recorded = directory.settings(folder)
    objects = Objects.of(benchmark, model, method, objective)
    given = {**settings, **dict(objects.names)}
    if objects.benchmark is not None:
        refuse_data_settings(settings)
    objects.check_complete(
        recorded if "benchmark" not in given else {**recorded, "benchmark": None},
        f"fedspecial.evaluate({str(folder)!r}, …)",
    )
    objects.check_same_method(recorded, "a model is evaluated with the method of its run")
    run_settings = resolve(recorded, objects.method, objects.objective)
    if run_settings.config.bank_choice == "task":
        raise InputError("bank_choice=task: it needs the task of every sample; result.json has the run's own accuracy")
    schema, targets = DataSchema.read(folder), run_settings.objective.targets
    if objects.benchmark is not None:
        if settings:
            given_too = ", ".join(f"{key}={value}" for key, value in settings.items())
            raise InputError(
                f"{given_too}: not used with a benchmark that is a Python object; change the object instead"
            )
        data = match(objects.benchmark.with_targets(targets).check(), schema, str(folder))
    else:
        data = load_benchmark(_data_config(recorded, given), targets, schema=schema)
    run_settings = apply_sites(run_settings, data)
    with one_at_a_time(), torch_settings(run_settings.config):
        return _accuracies(folder, run_settings, data, objects.model)


def _data_config(recorded: Settings, given: Settings) -> Config:
    """The settings of the data: those of the run with the given ones over them, or only these for another benchmark."""
    common = {key: value for key, value in recorded.items() if key in Config.model_fields}
    if not given:
        return check_common(common)
    merged = merge_settings(given if "benchmark" in given else {**common, **given})
    if "image_size" not in given:
        merged["image_size"] = None  # the size of the model's inputs, not that of the benchmark's preset
    for key in merged.keys() - Config.model_fields.keys() & given.keys():
        raise InputError(f"{key}: not a setting of the data")
    return check_common({key: value for key, value in merged.items() if key in Config.model_fields})


def _accuracies(
    folder: Path, run_settings: RunSettings, benchmark: Benchmark, model: GivenModel | None
) -> dict[str, float]:
    config, method = run_settings.config, run_settings.method
    federation = make_federation(config, benchmark)  # missing values are filled as in the run
    module, sets = _finished_module(folder, config, federation.benchmark, model)
    has_client_state = method.personal or config.batch_norm == "local"
    saved = checkpoints.load(folder / "checkpoint") if has_client_state else None
    parts = assemble(folder, run_settings, federation, module, saved, _in_process)
    buffers = [slot.name for slot in parts.runner.model.layout.slots if slot.kind == "buffer"]
    for name, stored in sets.items():
        parts.server.tensors[name] = torch.cat([stored[buffer].flatten() for buffer in buffers])

    last, domains = federation.num_tasks, federation.benchmark.domains

    def message(client: int) -> Broadcast:
        message = method.eval_broadcast(parts.server, client, last)
        bank.add_sets(parts.server, message)
        return message

    found = parts.engine.evaluate(message, range(1, len(domains) + 1))
    values = main_values(run_settings.objective, found)
    return {domain.name: value for domain, value in zip(domains, values, strict=True) if value is not None}


def _in_process(runner: ClientRunner, checkpointer: Checkpointer, saved: Checkpoint | None) -> Engine:
    """Worker processes would read the data of the run, which need not be the data to test on."""
    return InProcess(runner, ClientStates(checkpointer.blobs, saved.clients if saved else {}), PayloadTracker())


def _finished_module(
    folder: Path, config: Config, benchmark: Benchmark, model: GivenModel | None
) -> tuple[nn.Module, dict[str, dict[str, Tensor]]]:
    """The model at the end of the run, and the BatchNorm statistics of earlier tasks that it predicts with."""
    state, sets = split_sets(read_model(folder))
    outputs = state["fc.weight"].shape[0] if "fc.weight" in state else len(benchmark.classes)
    if len(benchmark.classes) > outputs:
        raise InputError(f"benchmark '{benchmark.name}': {len(benchmark.classes)} classes, but the model has {outputs}")
    module = make_module(config.model_copy(update={"weights": None}), benchmark, outputs, model)
    try:
        load_state(folder, module, state)
    except InputError:
        if model is not None:
            raise
        raise InputError(f"benchmark '{benchmark.name}': its inputs do not fit the model of {folder}") from None
    return module, sets
