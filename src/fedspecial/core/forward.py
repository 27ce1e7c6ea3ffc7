"""Calling a model: what its inputs and its output may look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedspecial.errors import InputError

Inputs = Tensor | Mapping[str, Tensor] | Sequence[Tensor]
"""A batch of inputs: one tensor, tensors by the names of the model's arguments, or several in their order."""


def output_of(module: nn.Module, inputs: Inputs) -> Any:
    """The output of a module as it is."""
    if isinstance(inputs, Tensor):
        return module(inputs)
    return module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)


def output_with(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Inputs) -> Any:
    """The output of a module with other values of these tensors; its own are not changed."""
    if isinstance(inputs, Mapping):
        return functional_call(module, dict(tensors), (), dict(inputs))
    return functional_call(module, dict(tensors), (inputs,) if isinstance(inputs, Tensor) else tuple(inputs))


def with_dtype(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """The inputs with their floating-point tensors converted; integers, such as token ids, stay as they are."""
    if isinstance(inputs, Tensor):
        return inputs.to(dtype) if inputs.is_floating_point() else inputs
    if isinstance(inputs, Mapping):
        return {name: part.to(dtype) if part.is_floating_point() else part for name, part in inputs.items()}
    return [part.to(dtype) if part.is_floating_point() else part for part in inputs]


def scores_of(output: Any) -> Tensor:
    """The scores in a model's output: the output itself, its `logits` (as Hugging Face models have them), or the first
    of several outputs."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    if isinstance(found, Tensor):
        return found
    raise InputError(
        f"model: its output is a {type(output).__name__} without scores; "
        "expected a tensor, an object or dict with `logits`, or a tuple that begins with them"
    )
