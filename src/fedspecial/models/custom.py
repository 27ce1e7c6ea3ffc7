"""A model of the user's own: ``model=file.py:Class``, also a function, or ``package.module:Class``."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from fedspecial.core.imports import describe_error, load_object
from fedspecial.errors import InputError

ARGUMENTS = ("input_shape", "num_classes", "width")


def build_custom(
    spec: str, *, input_shape: tuple[int, ...], num_classes: int, width: int | None = None, seed: int = 0
) -> nn.Module:
    """Call the user's class or function with those of the arguments it has, its random numbers drawn from `seed`.

    input_shape: one sample's shape: (channels, height, width), (features,) or (tokens,)
    num_classes: number of outputs
    width:       passed only if it is set
    """
    factory = load_object(spec, "model")
    if not callable(factory):
        raise InputError(f"model='{spec}': expected a class or function that returns a torch.nn.Module")
    given = {"input_shape": input_shape, "num_classes": num_classes, **({} if width is None else {"width": width})}
    accepted = _accepted(factory)
    if width is not None and "width" not in accepted:
        raise InputError(f"width={width}: model '{spec}' has no argument 'width'")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            module = factory(**{key: value for key, value in given.items() if key in accepted})
        except InputError:
            raise
        except Exception as error:  # user code can raise anything
            raise InputError(
                f"model='{spec}': calling it with {', '.join(accepted) or 'no arguments'} failed "
                f"({describe_error(error)})"
            ) from error
    if not isinstance(module, nn.Module):
        raise InputError(f"model='{spec}': it returned {type(module).__name__}, expected a torch.nn.Module")
    return module


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
