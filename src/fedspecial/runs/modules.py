"""The network of a run: made from the settings or given by the caller, with its initial weights."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn

from fedspecial import models
from fedspecial.config import Config, GivenObject
from fedspecial.core.imports import describe_error
from fedspecial.core.streams import stream_seed
from fedspecial.data.benchmark import Benchmark
from fedspecial.engine.head import wider_head
from fedspecial.errors import InputError
from fedspecial.models.custom import Factory, call_factory, check_weights
from fedspecial.runs.data import name_in
from fedspecial.runs.model_files import load_weights

GivenModel = nn.Module | Factory
"""A model that the caller passed: a module, of which every run trains a copy, or a function that makes one."""


def make_module(config: Config, benchmark: Benchmark, outputs: int, model: GivenModel | None) -> nn.Module:
    """A new module with its initial weights and that many outputs."""
    module = initial_module(config, benchmark.input_shape, outputs, model)
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError("model: a scripted module cannot be trained; give the module that it was made from")
    check_weights(module)
    if model is not None and benchmark.incremental == "class":
        wider_head(module, outputs, config.seed, 1)
    return module


def initial_module(config: Config, shape: tuple[int, ...], outputs: int, model: GivenModel | None) -> nn.Module:
    """A copy of the given module, or one whose weights are drawn from the seed."""
    seed = stream_seed(config.seed, "init") % 2**63
    if model is None:
        module = models.build(
            name_in("model", config.model),
            input_shape=shape,
            num_classes=outputs,
            width=config.width,
            seed=seed,
            encoder=config.encoder,
        )
        if config.weights is not None:
            load_weights(module, Path(config.weights))
        return module
    if isinstance(model, nn.Module):
        return _copied(model)
    name = config.model.object if isinstance(config.model, GivenObject) else config.model
    return call_factory(model, name, input_shape=shape, num_classes=outputs, width=config.width, seed=seed)


def _copied(module: nn.Module) -> nn.Module:
    """A copy to train, so that the caller's module keeps its weights and every run starts from the same ones."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise InputError(
            f"model={type(module).__name__}: it cannot be copied ({describe_error(error)}); "
            "pass a function that makes it: model=lambda: …"
        ) from error
