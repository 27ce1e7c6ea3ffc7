"""Descriptions of the settings, derived from the fields of `Config` and of the methods' classes.

All of them start from the JSON schema that pydantic makes of the fields: the tables of `fedspecial list settings` and
docs/configuration.md, and the schema of settings files that `fedspecial schema` prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from fedspecial.config.settings import GROUPS, Config
from fedspecial.config.sources import preset_names

Schema = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """One setting as it is shown to a user."""

    name: str
    type: str
    default: str
    description: str


def common_settings() -> dict[str, list[Setting]]:
    """The settings that every run has, by topic. Needs no torch."""
    schema = Config.model_json_schema()
    return {
        title: [_setting(name, schema["properties"][name], schema) for name in names] for title, names in GROUPS.items()
    }


def method_settings(method: str) -> list[Setting]:
    """The settings that only this method has. Imports the method's class, and with it torch."""
    schema = _method_schema(method)
    return [_setting(name, part, schema) for name, part in schema.get("properties", {}).items()]


def _setting(name: str, part: Schema, schema: Schema) -> Setting:
    return Setting(
        name, _type_text(part, schema), _value_text(part.get("default")), _sentence(part.get("description", ""))
    )


def _sentence(text: str) -> str:
    first = text[:1].upper() if text[:1].isascii() else text[:1]
    return f"{first}{text[1:]}{'' if not text or text.endswith('.') else '.'}"


def _value_text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(_value_text, value)) if isinstance(value, (list, tuple)) else str(value)


def _type_text(part: Schema, schema: Schema) -> str:
    """A type and its range in a few words: "whole number ≥ 1", "stop or skip"."""
    if "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    if "enum" in part:
        return _alternatives(map(str, part["enum"]))
    if "const" in part:
        return str(part["const"])
    if "anyOf" in part:
        options = [option for option in part["anyOf"] if "$ref" not in option]
        return _alternatives(option.get("title") or _type_text(option, schema) for option in options)
    kind = part.get("type")
    if kind in ("integer", "number"):
        return f"{'whole number' if kind == 'integer' else 'number'}{_range_text(part)}"
    if kind == "array":
        items = [_type_text(item, schema) for item in part.get("prefixItems", [part.get("items", {})])]
        return f"list of {items[0]}" if "prefixItems" not in part else f"{len(items)} values: {', '.join(items)}"
    return {"boolean": "true or false", "string": "text", "object": "mapping", "null": "none"}.get(str(kind), "any")


def _range_text(part: Schema) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {part[key]:g}" for key, sign in signs.items() if key in part]
    return " " + " and ".join(limits) if limits else ""


def _alternatives(texts: Iterable[str]) -> str:
    *most, last = dict.fromkeys(texts)
    return f"{', '.join(most)} or {last}" if most else last


def settings_schema() -> Schema:
    """JSON schema (draft 2020-12) of a settings file, for editors that complete and check YAML files.

    A method's own settings are allowed only together with that method; a method from a file may have any.
    """
    from fedspecial import methods

    common = Config.model_json_schema()
    own = {name: _method_schema(name) for name in methods.names()}
    properties: Schema = dict(common["properties"])
    _suggest(properties["benchmark"], preset_names())
    _suggest(properties["method"], methods.names())
    _suggest(properties["model"], _model_names())
    properties |= {name: _reader_option(name, users) for name, users in _reader_options().items()}
    properties["methods"] = {
        "type": "object",
        "description": "Settings for single methods, used when the run has that method.",
        "properties": {name: _closed(part["properties"]) for name, part in own.items()},
    }
    properties["about"] = {"type": "object", "description": "Written by fedspecial; ignored when a run starts."}
    allowed = dict.fromkeys(properties, True)
    definitions = {**common.get("$defs", {})}
    for part in own.values():
        definitions |= part.pop("$defs", {})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of a fedspecial run",
        "type": "object",
        "properties": properties,
        "allOf": [
            {"if": _has_method(name), "then": _closed({**allowed, **part["properties"]})} for name, part in own.items()
        ],
        "$defs": definitions,
    }


def _has_method(name: str) -> Schema:
    """Also true without `method`, if this is the default one."""
    condition: Schema = {"properties": {"method": {"const": name}}}
    return condition if name == Config().method else {**condition, "required": ["method"]}


def _closed(properties: Schema) -> Schema:
    return {"properties": properties, "additionalProperties": False}


def _suggest(part: Schema, names: list[str]) -> None:
    """Names that an editor offers, where other values are allowed too."""
    part["examples"] = names


def _method_schema(name: str) -> Schema:
    from fedspecial import methods

    schema = TypeAdapter(methods.find(name)).json_schema()
    return {"properties": {}, **schema}


def _model_names() -> list[str]:
    from fedspecial import models

    return models.names()


def _reader_options() -> dict[str, list[str]]:
    """Each option of a benchmark's reader and the benchmarks that have it."""
    from fedspecial.data import catalogue

    users: dict[str, list[str]] = {}
    for name in catalogue.names():
        for option in catalogue.entry(name).options:
            if option not in Config.model_fields:
                users.setdefault(option, []).append(name)
    return users


def _reader_option(name: str, users: list[str]) -> Schema:
    return {"description": f"Option of the reader of {', '.join(users)}; the same as options: {{{name}: …}}."}
