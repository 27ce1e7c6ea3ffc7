"""Where settings come from: ``key=value`` arguments, YAML files and the presets of the benchmarks."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from fedspecial.config.paths import absolute_paths
from fedspecial.config.values import Settings
from fedspecial.core.yaml_text import RefusedYAMLError, load_yaml
from fedspecial.errors import InputError


def parse_yaml(text: str) -> Any:
    """Values of a YAML text. What libyaml refuses is read again by PyYAML, whose errors say more."""
    try:
        return load_yaml(text)
    except RefusedYAMLError:
        raise
    except yaml.YAMLError:
        return load_yaml(text, loader=yaml.SafeLoader)


def parse_settings(pairs: list[str]) -> Settings:
    """``["lam=0.1", "domains=a,b"]`` → settings. Values are read as YAML."""
    settings: Settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InputError(f"'{pair}': expected key=value")
        if key in settings:
            raise InputError(f"{key}: it is given twice ({settings[key]} and {value})")
        if value == "":
            raise InputError(f"{key}=: there is no value (write {key}=null for none)")
        try:
            settings[key] = parse_yaml(value)
        except yaml.YAMLError:
            raise InputError(f"{key}={value}: the value is not valid YAML") from None
    return settings


def read_settings(path: Path) -> Settings:
    """The content of a YAML file of settings."""
    try:
        settings = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(settings, dict):
        raise InputError(f"{path}: expected lines of 'key: value'")
    return settings


def read_run_file(path: Path) -> Settings:
    """Settings for a new run from a file, which may be the config.yaml of an earlier run.

    A relative path in the file starts from the folder of the file, or else from the current one.
    """
    settings = absolute_paths(read_settings(path), path.parent)
    settings.pop("about", None)
    settings.pop("out", None)
    return settings


@cache
def preset_names() -> list[str]:
    folder = resources.files("fedspecial") / "presets"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def preset_settings(name: str) -> Settings:
    """The preset of that name; empty if there is none."""
    if name not in preset_names():
        return {}
    text = (resources.files("fedspecial") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    return dict(parse_yaml(text))


def benchmark_of_preset(name: str) -> str:
    """The benchmark that a preset uses; any other name is the name of a benchmark itself."""
    return str(preset_settings(name).get("benchmark", name))
