"""Griffe extension: the fields of a pydantic dataclass are the arguments of its constructor.

Static analysis knows this of the standard library's dataclasses only. Without it, the API page would show every
hyper-parameter of a method as required and without a type.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

DECORATOR = "pydantic.dataclasses.dataclass"


class PydanticFields(griffe.Extension):
    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        decorators = (decorator.value for decorator in cls.decorators)
        if not any(isinstance(value, griffe.Expr) and value.canonical_path == DECORATOR for value in decorators):
            return
        fields = [
            member for member in cls.members.values() if isinstance(member, griffe.Attribute) and _is_field(member)
        ]
        if not fields:
            return
        aliases = _aliases(cls.module)
        parameters = [
            griffe.Parameter(
                field.name,
                annotation=plain_type(str(field.annotation), aliases),
                kind=griffe.ParameterKind.positional_or_keyword,
                default=field.value,
            )
            for field in fields
        ]
        self_parameter = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        init = griffe.Function("__init__", parameters=griffe.Parameters(self_parameter, *parameters), parent=cls)
        cls.set_member("__init__", init)


def _is_field(member: griffe.Attribute) -> bool:
    return "instance-attribute" in member.labels and "ClassVar" not in str(member.annotation or "ClassVar")


def _aliases(module: griffe.Module) -> dict[str, str]:
    """Types such as ``Share = Annotated[float, Field(ge=0, le=1)]``: their names, and the type without the range."""
    values = {name: str(member.value) for name, member in module.attributes.items() if member.value is not None}
    return {name: plain_type(value, {}) for name, value in values.items() if value.startswith("Annotated[")}


def plain_type(annotation: str, aliases: dict[str, str]) -> str:
    """The type that a reader has to know: the first argument of ``Annotated``, with aliases replaced by their types.

    >>> plain_type("Annotated[Share | None, Field(description='a share, from 0 on')]", {"Share": "float"})
    'float | None'
    """
    if annotation.startswith("Annotated["):
        annotation = _first_argument(annotation.removeprefix("Annotated["))
    return re.sub(r"\w+", lambda word: aliases.get(word[0], word[0]), annotation)


def _first_argument(arguments: str) -> str:
    """The text before the first comma that is not inside brackets."""
    depth = 0
    for position, character in enumerate(arguments):
        depth += (character in "[(") - (character in "])")
        if depth == 0 and character == ",":
            return arguments[:position]
    return arguments
