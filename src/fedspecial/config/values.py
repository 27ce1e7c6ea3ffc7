"""Types of settings: names, numbers with a range, and Python objects that stand in for a name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

Settings = dict[str, Any]
"""Settings by name, as they are in a YAML file."""


class LazyModel(BaseModel):
    """A frozen model whose validation is built at its first use: `--help` needs none, and bases of a model never do."""

    model_config = ConfigDict(frozen=True, defer_build=True)


class GivenObject(LazyModel):
    """Stands for a Python object that was passed to `fedspecial.run` instead of a name.

    config.yaml records it as ``{object: NAME}``. The object itself is not saved, so the caller passes it again to
    resume or evaluate the run.
    """

    model_config = ConfigDict(extra="forbid")

    object: Annotated[str, Field(description="Name of the object, for the reader of config.yaml.")]

    def __str__(self) -> str:
        return f"a Python object ({self.object})"


def given_object(name: str) -> Settings:
    """The value that config.yaml records for a Python object of that name."""
    return GivenObject(object=name).model_dump()


def is_given_object(value: object) -> bool:
    """Whether a setting's value, parsed or as it is in config.yaml, stands for a Python object."""
    return isinstance(value, GivenObject) or (isinstance(value, dict) and value.keys() == {"object"})


def plain_value(value: Any) -> Any:
    """A value as YAML can write it: numbers of NumPy and torch become Python's. TypeError for other objects."""
    if value is None or type(value) in (bool, int, float, str) or isinstance(value, GivenObject):
        return value
    if isinstance(value, Mapping):
        return {key: plain_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(part) for part in value]
    if isinstance(value, PurePath):
        return str(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    if isinstance(value, str | date):  # YAML reads 2024-01-01 as a date, which may be the name of a domain
        return str(value)
    raise TypeError(type(value).__name__)


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _server_lr(value: object) -> object:
    try:
        if value == "1/i" or 0 <= float(value) < math.inf:  # type: ignore[arg-type]
            return value
    except (TypeError, ValueError):
        pass
    raise ValueError("expected 1/i or a number that is not negative")


def _workers(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError("expected a whole number of at least 1, or auto")


Names = Annotated[
    tuple[str, ...],
    BeforeValidator(_split),
    WithJsonSchema(
        {
            "title": "names separated by commas",
            "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}],
        }
    ),
]
NameOrObject = str | GivenObject
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
ServerLr = Annotated[Literal["1/i"] | NonNegative, BeforeValidator(_server_lr)]


Workers = Annotated[
    int | Literal["auto"],
    BeforeValidator(_workers),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}], "title": "number or auto"}),
]
