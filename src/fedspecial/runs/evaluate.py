"""Accuracy of a finished model on the domains of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

from fedspecial.config import Config, RunSettings, Settings, check_common, merge_settings, resolve
from fedspecial.data.benchmark import Benchmark, Domain
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.errors import InputError
from fedspecial.methods.base import Method
from fedspecial.runs import directory
from fedspecial.runs.api import Objects
from fedspecial.runs.build import apply_sites, assemble, load_benchmark, make_federation, make_module
from fedspecial.runs.devices import torch_settings


def evaluate(
    folder: str | Path,
    benchmark: str | Benchmark | Sequence[Domain] | None = None,
    *,
    model: nn.Module | None = None,
    method: Method | None = None,
    **settings: Any,
) -> dict[str, float]:
    """Test the model of a finished run on the domains of a benchmark, by default those it was trained on.

    Args:
        folder: the run directory.
        benchmark: other data to test on: a name, ``file.py:function``, a `Benchmark`, or a list of `Domain`.
        model: the module that was passed to `run`, if one was; objects are not saved.
        method: likewise; not needed if its class can be imported.
        **settings: settings of the data, such as ``domains="photo"`` or ``data="/data"``.

    Returns:
        The accuracy, between 0 and 1, on each domain.

    Example:
        >>> import fedspecial
        >>> fedspecial.evaluate("runs/digits-shift-special-001", domains="photo")  # doctest: +SKIP
        {'photo': 0.83}
    """
    folder = Path(folder)
    recorded = directory.settings(folder)
    if not (folder / "model.safetensors").exists():
        raise InputError(f"{folder}: the run is not finished (no model.safetensors); resume it first")
    objects = Objects.of(benchmark, model, method)
    given = {**settings, **dict(objects.names)}
    objects.check_complete(
        recorded if "benchmark" not in given else {**recorded, "benchmark": None},
        f"fedspecial.evaluate({str(folder)!r}, …)",
    )
    run_settings = resolve(recorded, objects.method)
    data = objects.benchmark.check() if objects.benchmark else load_benchmark(_data_config(recorded, given))
    run_settings = apply_sites(run_settings, data)
    with torch_settings(run_settings.config):
        return _accuracies(folder, run_settings, data, objects.model)


def _data_config(recorded: Settings, given: Settings) -> Config:
    """The settings of the data: those of the run with the given ones over them, or only these for another benchmark."""
    common = {key: value for key, value in recorded.items() if key in Config.model_fields}
    if not given:
        return check_common(common)
    merged = merge_settings(given if "benchmark" in given else {**common, **given})
    for key in merged.keys() - Config.model_fields.keys() & given.keys():
        raise InputError(f"{key}: not a setting of the data")
    return check_common({key: value for key, value in merged.items() if key in Config.model_fields})


def _accuracies(
    folder: Path, run_settings: RunSettings, benchmark: Benchmark, module: nn.Module | None
) -> dict[str, float]:
    config, method = run_settings.config, run_settings.method
    federation = make_federation(config, benchmark)  # missing values are filled as in the run
    module = _finished_module(folder, config, federation.benchmark, module)
    has_client_state = method.personal or config.batch_norm == "local"
    saved = checkpoints.load(folder / "checkpoint") if has_client_state else None
    parts = assemble(folder, run_settings, federation, module, saved)
    last, domains = federation.num_tasks, federation.benchmark.domains
    found = parts.engine.accuracies(
        lambda client: method.eval_broadcast(parts.server, client, last), range(1, len(domains) + 1)
    )
    return {domain.name: value for domain, value in zip(domains, found, strict=True) if value is not None}


def _finished_module(folder: Path, config: Config, benchmark: Benchmark, module: nn.Module | None) -> nn.Module:
    """The model with the weights at the end of the run."""
    state = load_file(folder / "model.safetensors")
    outputs = state["fc.weight"].shape[0] if "fc.weight" in state else len(benchmark.classes)
    if len(benchmark.classes) > outputs:
        raise InputError(f"benchmark '{benchmark.name}': {len(benchmark.classes)} classes, but the model has {outputs}")
    module = make_module(config.model_copy(update={"weights": None}), benchmark, outputs, module)
    try:
        module.load_state_dict(state, strict=False)
    except RuntimeError:
        raise InputError(f"benchmark '{benchmark.name}': its inputs do not fit the model of {folder}") from None
    return module
