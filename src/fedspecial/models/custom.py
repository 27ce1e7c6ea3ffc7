"""A model of the user's own: ``model=file.py:Class``, also a function, or ``package.module:Class``; from Python also a
function or class as it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedspecial.core.imports import describe_error, load_object
from fedspecial.errors import InputError

ARGUMENTS = ("input_shape", "num_classes", "width")

Factory = Callable[..., nn.Module]
"""Makes a model; it takes any of `ARGUMENTS`, by name."""


def build_custom(
    spec: str, *, input_shape: tuple[int, ...], num_classes: int, width: int | None = None, seed: int = 0
) -> nn.Module:
    """The model of a class or function that is given by name; arguments as in `call_factory`."""
    factory = load_object(spec, "model")
    if not callable(factory):
        raise InputError(f"model='{spec}': expected a class or function that returns a torch.nn.Module")
    if width is not None and "width" not in _accepted(factory):
        raise InputError(f"width={width}: model '{spec}' has no argument 'width'")
    return call_factory(factory, spec, input_shape=input_shape, num_classes=num_classes, width=width, seed=seed)


def call_factory(
    factory: Factory, name: str, *, input_shape: tuple[int, ...], num_classes: int, width: int | None = None, seed: int
) -> nn.Module:
    """Call the user's class or function with those of the arguments it has, its random numbers drawn from `seed`.

    name:        for error messages
    input_shape: one sample's shape: (channels, height, width), (features,) or (tokens,)
    num_classes: number of outputs
    width:       passed only if it is set; a preset may have set it for another model, so it may be left out
    """
    given = {"input_shape": input_shape, "num_classes": num_classes, **({} if width is None else {"width": width})}
    accepted = _accepted(factory)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            module = factory(**{key: value for key, value in given.items() if key in accepted})
        except InputError:
            raise
        except Exception as error:  # user code can raise anything
            raise InputError(
                f"model='{name}': calling it with {', '.join(accepted) or 'no arguments'} failed "
                f"({describe_error(error)})"
            ) from error
    if not isinstance(module, nn.Module):
        raise InputError(f"model='{name}': it returned {type(module).__name__}, expected a torch.nn.Module")
    return module


def check_weights(module: nn.Module) -> None:
    """Refuse weights from which no training can start."""
    for name, weight in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(weight):
            raise InputError(
                f"model: the shape of '{name}' is not known yet; call the module on a batch before the run"
            )
    for name, weight in module.named_parameters():
        if weight.requires_grad and not bool(weight.isfinite().all()):
            raise InputError(f"model: its weight '{name}' contains NaN or infinity at the beginning")


def _accepted(factory: object) -> tuple[str, ...]:
    """The arguments that the class or function takes; all of them if it takes any keyword."""
    assert callable(factory)
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some classes written in C have no signature
        return ARGUMENTS
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return ARGUMENTS
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return tuple(name for name in ARGUMENTS if name in names)
