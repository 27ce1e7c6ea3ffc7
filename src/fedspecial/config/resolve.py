"""From the settings that a user gives to the complete settings of a run.

Sources in order of precedence, later ones winning: the defaults of `Config` (the paper's), the benchmark's preset, the
method's defaults for settings of the run (`methods.run_defaults`), the preset's settings for the method, the user's
file, the user's settings. `merge_settings` needs no torch, so that a run can record its settings before anything slow
is imported; `resolve` also checks the method's own settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from fedspecial.config.aggregation_settings import check_aggregation
from fedspecial.config.asynchrony_settings import check_asynchrony
from fedspecial.config.method_class import check_method_class
from fedspecial.config.paths import absolute_paths
from fedspecial.config.privacy_settings import check_privacy
from fedspecial.config.settings import Config
from fedspecial.config.sources import benchmark_of_preset, preset_settings
from fedspecial.config.stream_settings import check_detection
from fedspecial.config.values import Settings, is_given_object, plain_value
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.methods.base import Method
    from fedspecial.objectives.base import Objective


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run, checked: the common ones, the method with its own, and the objective."""

    config: Config
    method: Method
    objective: Objective

    def flat(self) -> Settings:
        """Every setting by name, defaults included; resolving them again gives the same run."""
        settings = self.config.model_dump(mode="json")
        return settings | {key: value for key, value in asdict(self.method).items() if value is not None}


def merge_settings(given: Mapping[str, Any]) -> Settings:
    """The user's settings on top of the preset; all are checked except the method's own."""
    settings = absolute_paths(_plain_settings(given))
    if "tracker" in settings:  # one tracker or several: both words are natural
        settings["trackers"] = settings.pop("tracker")
    chosen = settings.get("benchmark", Config().benchmark)
    if is_given_object(chosen):
        refuse_data_settings(settings)
    preset = {} if is_given_object(chosen) else preset_settings(str(chosen))
    preset |= _settings_for_kind(preset.pop("kinds", {}), preset, settings)
    by_method = [preset.pop("methods", {}), settings.pop("methods", {})]
    from fedspecial import methods, objectives

    preset |= methods.run_defaults(str(settings.get("method", Config().method)))
    base = {**preset, **{k: v for k, v in settings.items() if k != "benchmark" or "benchmark" not in preset}}
    base |= _dependent_settings(settings, preset)
    config = check_common({k: v for k, v in base.items() if k in Config.model_fields})
    methods.check_name(config.method)
    if isinstance(config.objective, str):
        objectives.check_name(config.objective)
    own = {key: value for part in by_method for key, value in _of_method(part, config.method).items()}
    if settings.get("mu") is not None:
        own.pop("lam", None)  # λ and μ exclude each other, and the user's choice wins over the preset's
    return _collect_options({**own, **base, **config.model_dump(include={"benchmark", "method"})}, config)


_OF_READERS = ("data", "domains", "cap", "holdout", "image_size", "on_bad", "options")
"""Settings with which a named benchmark is read and cut."""


def refuse_data_settings(given: Mapping[str, Any]) -> None:
    """Refuse settings that say how a benchmark is read where it is a Python object: nothing would be done with them."""
    for key in _OF_READERS:
        if key in given and given[key] not in (Config.model_fields[key].get_default(call_default_factory=True), {}):
            how = "; for validation, give benchmark.held_out(share, seed)" if key == "holdout" else ""
            raise InputError(
                f"{key}={given[key]}: the benchmark is a Python object, which is used as it is; leave {key} out and "
                f"give the domains and samples that are meant{how}"
            )


def _plain_settings(given: Mapping[str, Any]) -> Settings:
    """Settings are saved in config.yaml, so a function or another Python object cannot be one."""
    settings: Settings = {}
    for key, value in given.items():
        try:
            settings[key] = plain_value(value)
        except TypeError:
            name = str(given.get("method", Config().method))
            if key not in Config.model_fields and key not in (own := _own_settings(name)):
                raise unknown_setting(key, name, own) from None
            kind = type(value).__name__
            raise InputError(f"{key}: a Python object of type {kind}, which cannot be saved as a setting") from None
    return settings


def refuse_unread_data(given: Mapping[str, Any]) -> None:
    """Refuse a folder or file that the benchmark would not read: whoever names it believes that it is used."""
    from fedspecial.data import catalogue

    chosen = given.get("benchmark", Config().benchmark)
    if given.get("data") is None or is_given_object(chosen):
        return
    found = catalogue.entry(benchmark_of_preset(str(chosen)))
    if found.kind is not None and not found.needs_data:
        raise InputError(
            f"data={given['data']}: benchmark '{found.name}' is built in and reads no files; for data of your own, "
            "choose benchmark=folders"
        )


def _own_settings(method: str) -> list[str]:
    from fedspecial import methods

    methods.check_name(method)
    return [field.name for field in fields(methods.find(method))]


_ADAPTIVE_SERVER = ("adam", "yogi", "adagrad")
"""Their steps have about the size of server_lr in each weight, whatever the size of the mean delta."""


def _settings_for_kind(by_kind: Mapping[str, Settings], preset: Settings, settings: Settings) -> Settings:
    """The part of a preset that depends on the kind of the data, which is found by looking at the files."""
    if not by_kind:
        return {}
    from fedspecial.data import catalogue

    kind_of = catalogue.entry(str(preset["benchmark"])).kind_of
    folder = settings.get("data") or os.environ.get(catalogue.VARIABLE)
    # Without data the run is refused later; until then any kind will do.
    found = kind_of(Path(folder)) if kind_of and folder and Path(folder).exists() else next(iter(by_kind))
    return dict(by_kind[found])


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
    if settings.get("server_optimizer") in _ADAPTIVE_SERVER and "server_lr" not in settings:
        changes["server_lr"] = 0.01
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


def resolve(
    settings: Mapping[str, Any], method: Method | None = None, objective: Objective | None = None
) -> RunSettings:
    """Check the result of `merge_settings` completely, the method's own settings included.

    method, objective: objects that are used as they are, instead of those that the settings name
    """
    config = check_common({k: v for k, v in settings.items() if k in Config.model_fields})
    if method is None:
        own = {k: v for k, v in settings.items() if k not in Config.model_fields}
        method = _make_method(config, own)
    method.check_settings(adaptive=config.adaptive)
    check_aggregation(config, method)
    check_asynchrony(config, method)
    check_privacy(config, method)
    check_detection(config, method)
    objective = objective or _find_objective(config)
    if type(method).needs_class_scores and not objective.class_scores:
        raise InputError(
            f"method={method.name}: it needs scores of classes, so it works only with objective=classification, "
            f"not {objective.name}"
        )
    if config.batch_norm == "bank" and type(method).personal:
        raise InputError(
            f"batch_norm=bank: it needs a common model, but with method={method.name} clients have their own"
        )
    told = config.bank_choice == "task"
    if told and (config.batch_norm, config.stream, config.detect) != ("bank", "sharp", "none"):
        raise InputError(
            "bank_choice=task: it needs batch_norm=bank and tasks that are announced and do not mix or come back "
            f"(batch_norm={config.batch_norm}, stream={config.stream}, detect={config.detect})"
        )
    return RunSettings(config, method, objective)


def _find_objective(config: Config) -> Objective:
    from fedspecial import objectives

    if not isinstance(config.objective, str):
        raise InputError(f"objective={config.objective.object}: a Python object, which is not saved; pass it again")
    return objectives.find(config.objective)


def _make_method(config: Config, own: Settings) -> Method:
    from fedspecial import methods

    kind = methods.find(config.method)
    check_method_class(kind)
    known = _own_settings(config.method)
    for key in own:
        if key not in known:
            options = () if is_given_object(config.benchmark) else reader_options(str(config.benchmark))
            raise unknown_setting(key, config.method, known, options)
    try:
        return TypeAdapter(kind).validate_python(own)
    except ValidationError as error:
        raise InputError(_one_line(error)) from None


def unknown_setting(key: str, method: str, own: Iterable[str], options: Iterable[str] = ()) -> InputError:
    """own: the settings of the method · options: those of the benchmark's reader"""
    own = list(own)
    hint = did_you_mean(key, [*Config.model_fields, *own, *options])
    mine = f"; {method} has {', '.join(own)}" if own else f"; {method} has no settings of its own"
    return InputError(f"{key}: unknown setting for method '{method}'{hint}{mine}")


def check_common(settings: Settings) -> Config:
    """The settings that every run has, checked."""
    try:
        return Config(**settings)
    except ValidationError as error:
        raise InputError(_one_line(error)) from None


def _one_line(error: ValidationError) -> str:
    """The first setting that is wrong, with all that it may be: a setting of several types has one error for each."""
    first = error.errors()[0]
    same = [part for part in error.errors() if part["loc"][:1] == first["loc"][:1]]
    others = error.error_count() - len(same)
    more = f" (and {others} more)" if others else ""
    messages = list(dict.fromkeys(part["msg"].removeprefix("Value error, ") for part in same))
    if not first["loc"]:
        return messages[0] + more
    message = ", or ".join([messages[0], *(text.removeprefix("Input should be ") for text in messages[1:])])
    return f"{first['loc'][0]}={first['input']}: {message[0].lower()}{message[1:]}{more}"
