"""Reading YAML that may come from a stranger: libyaml where it is there, which is ten times as fast, within bounds."""

from __future__ import annotations

from typing import Any

import yaml

FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_DEPTH = 100
"""libyaml builds nested values by recursion in C: deep nesting would end the process instead of raising an error."""


class RefusedYAMLError(yaml.YAMLError):
    """YAML that is well-formed and still not read."""


def load_yaml(text: str | bytes, *, loader: Any = FAST_LOADER, aliases: bool = True) -> Any:
    """The value of a YAML text; whatever is wrong with it is a `yaml.YAMLError`.

    aliases: whether ``*name`` is allowed; aliases can expand a small file to gigabytes
    """
    try:
        _check_structure(text, loader, aliases)
        return yaml.load(text, Loader=loader)
    except (ValueError, LookupError, AttributeError) as error:  # such as !!bool before something else
        raise yaml.YAMLError(f"a value does not fit its tag ({' '.join(str(error).split())})") from error


def _check_structure(text: str | bytes, loader: Any, aliases: bool) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent) and not aliases:
            raise RefusedYAMLError("it contains YAML aliases")
        if depth > MAX_DEPTH:
            raise RefusedYAMLError(f"values are nested more than {MAX_DEPTH} levels deep")
