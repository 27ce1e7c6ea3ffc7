"""Whether the hyper-parameters of a method's class can be settings of a run."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar, get_origin

from fedspecial.config.settings import Config
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.methods.base import Method


def check_method_class(kind: type[Method]) -> None:
    """Refuse a class whose hyper-parameters would not be recorded with the run, or would change other settings.

    Without the decorator, annotated attributes and arguments of `__init__` are no fields: they are not saved, and a
    resumed run would have others.
    """
    for part in kind.__mro__:
        if "__dataclass_fields__" in vars(part):
            break
        own = [name for name, found in inspect.get_annotations(part).items() if not _is_class_variable(found)]
        if own or "__init__" in vars(part):
            what = f"its attribute '{own[0]}' is" if own else "the arguments of its __init__ are"
            raise InputError(
                f"method={kind.__name__}: {what} no hyper-parameter yet; declare hyper-parameters as annotated "
                "attributes, and put @dataclass(frozen=True) above the class (from pydantic.dataclasses)"
            )
    for field in fields(kind):
        if field.name in Config.model_fields:
            raise InputError(
                f"method={kind.__name__}: its attribute '{field.name}' is named as a setting of every run; rename it"
            )


def _is_class_variable(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.removeprefix("typing.").startswith("ClassVar")
    return annotation is ClassVar or get_origin(annotation) is ClassVar
