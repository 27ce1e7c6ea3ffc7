"""From the settings that a user gives to the complete settings of a run.

Sources in order of precedence, later ones winning: the defaults of `Config` (the paper's), the benchmark's preset, the
preset's settings for the method, the user's file, the user's settings. `merge_settings` needs no torch, so that a run
can record its settings before anything slow is imported; `resolve` also checks the method's own settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from fedspecial.config.settings import Config, Settings, is_given_object
from fedspecial.config.sources import preset_settings
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.methods.base import Method


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run, checked: the common ones and the method with its own."""

    config: Config
    method: Method

    def flat(self) -> Settings:
        """Every setting by name, defaults included; resolving them again gives the same run."""
        settings = self.config.model_dump(mode="json")
        return settings | {key: value for key, value in asdict(self.method).items() if value is not None}


def merge_settings(given: Mapping[str, Any]) -> Settings:
    """The user's settings on top of the preset; all are checked except the method's own."""
    settings = dict(given)
    chosen = settings.get("benchmark", Config().benchmark)
    preset = {} if is_given_object(chosen) else preset_settings(str(chosen))
    by_method = [preset.pop("methods", {}), settings.pop("methods", {})]
    base = {**preset, **{k: v for k, v in settings.items() if k != "benchmark" or "benchmark" not in preset}}
    base |= _dependent_settings(settings, preset)
    config = check_common({k: v for k, v in base.items() if k in Config.model_fields})
    from fedspecial import methods

    methods.check_name(config.method)
    own = {key: value for part in by_method for key, value in _of_method(part, config.method).items()}
    if settings.get("mu") is not None:
        own.pop("lam", None)  # λ and μ exclude each other, and the user's choice wins over the preset's
    return _collect_options({**own, **base, **config.model_dump(include={"benchmark", "method"})}, config)


def _dependent_settings(settings: Settings, preset: Settings) -> Settings:
    """Settings of the preset that the user's choice of another setting replaces; None where it removes them."""
    changes: Settings = {}
    steps, epochs = settings.get("local_steps"), settings.get("local_epochs")
    if steps is not None and epochs is not None:
        raise InputError(f"local_steps={steps} and local_epochs={epochs} are both given; give one")
    if steps is not None:
        changes["local_epochs"] = None
    elif epochs is not None:
        changes["local_steps"] = None
    model = settings.get("model", preset.get("model"))
    if settings.get("encoder") is not None and "model" not in settings:
        changes["model"] = model = "transformer"
    elif settings.get("model", "transformer") != "transformer" and "encoder" not in settings:
        changes["encoder"] = None
    if model != preset.get("model") and "width" not in settings:
        changes["width"] = None
    return changes


def _of_method(by_method: object, name: str) -> Settings:
    """The settings for one method in the part `methods` of a preset or file."""
    found = by_method.get(name) or {} if isinstance(by_method, dict) else by_method
    if not isinstance(found, dict):
        raise InputError(f"methods={by_method}: expected the settings of each method, such as special: {{lam: 0.1}}")
    return found


def _collect_options(settings: Settings, config: Config) -> Settings:
    """Move the settings that only the benchmark's reader has, such as a CSV's label column, into `options`."""
    if is_given_object(config.benchmark):
        return settings
    known = reader_options(str(config.benchmark))
    mine = {key: value for key, value in settings.items() if key in known and key not in Config.model_fields}
    rest = {key: value for key, value in settings.items() if key not in mine}
    return {**rest, "options": {**config.options, **mine}} if mine else rest


def reader_options(benchmark: str) -> Mapping[str, Any]:
    """The options of a benchmark's reader and their defaults; an unknown benchmark is refused."""
    from fedspecial.data import catalogue

    return catalogue.entry(benchmark).options


def resolve(settings: Mapping[str, Any], method: Method | None = None) -> RunSettings:
    """Check the result of `merge_settings` completely, the method's own settings included.

    method: an object that is used as it is, instead of one made from the settings
    """
    config = check_common({k: v for k, v in settings.items() if k in Config.model_fields})
    if method is None:
        own = {k: v for k, v in settings.items() if k not in Config.model_fields}
        method = _make_method(config.method, own)
    method.check_settings(adaptive=config.optimizer != "sgd")
    return RunSettings(config, method)


def _make_method(name: str, own: Settings) -> Method:
    from fedspecial import methods

    kind = methods.find(name)
    known = [field.name for field in fields(kind)]
    for key in own:
        if key not in known:
            raise unknown_setting(key, name, known)
    try:
        return TypeAdapter(kind).validate_python(own)
    except ValidationError as error:
        raise InputError(_one_line(error)) from None


def unknown_setting(key: str, method: str, own: Iterable[str]) -> InputError:
    own = list(own)
    hint = did_you_mean(key, [*Config.model_fields, *own])
    mine = f"; {method} has {', '.join(own)}" if own else f"; {method} has no settings of its own"
    return InputError(f"{key}: unknown setting for method '{method}'{hint}{mine}")


def check_common(settings: Settings) -> Config:
    """The settings that every run has, checked."""
    try:
        return Config(**settings)
    except ValidationError as error:
        raise InputError(_one_line(error)) from None


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message + more
    value = first["input"]
    return f"{first['loc'][0]}={value}: {message[0].lower()}{message[1:]}{more}"
