"""The words of a run. The same words stand in a YAML file, on the command line and in `fedspecial.run(...)`.

Values are settled in this order, later ones winning: defaults below (the paper's), the benchmark's preset, what the
preset says for the method, the user's file, the user's words. This module imports no torch, so that a run can
write down what was asked of it before anything slow begins.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.methods.base import Method

Settings = dict[str, Any]


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _server_lr(value: object) -> object:
    try:
        if value == "1/i" or 0 <= float(value) < math.inf:  # type: ignore[arg-type]
            return value
    except (TypeError, ValueError):
        pass
    raise ValueError("expected 1/i or a number that is not negative")


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Positive = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class Config(BaseModel):
    """Everything about a run but the method's own hyper-parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)

    benchmark: str = "digits-shift"
    data: str | None = None
    domains: Names | None = None
    cap: Count | None = None
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    image_size: Count | None = None
    on_bad: Literal["stop", "skip"] = "stop"
    options: dict[str, Any] = {}

    method: str = "special"
    seed: Annotated[int, Field(ge=0)] = 25
    rounds: Count = 20
    local_epochs: Positive | None = 5.0
    local_steps: Count | None = None
    batch_size: Count = 32

    clients: Count = 8
    clients_per_round: Count = 4
    partition: Literal["dirichlet", "iid", "shards", "quantity", "sites"] = "dirichlet"
    alpha: Positive = 0.1
    min_per_client: Annotated[int, Field(ge=0)] = 10
    shared_proportions: bool = False

    client_lr: Rate = 0.001
    client_lr_decay: Positive = 0.96
    client_lr_reset: bool = True
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Rate = 0.0
    server_lr: Annotated[Literal["1/i"] | float, BeforeValidator(_server_lr)] = "1/i"
    weighting: Literal["uniform", "samples", "registered"] = "uniform"
    batch_norm: Literal["average", "mean-only", "local"] = "average"

    model: str = "resnet18"
    width: Count | None = None
    encoder: str | None = None
    weights: str | None = None
    device: str = "cpu"
    threads: Count = 1
    eval_every: Annotated[int, Field(ge=0)] = 1
    eval_cap: Count | None = None
    estimate: bool = False
    checkpoint_seconds: Rate = 10.0
    out: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.clients_per_round > self.clients:
            raise ValueError(
                f"clients_per_round={self.clients_per_round}: only clients={self.clients} are there to choose from"
            )
        if self.local_steps is None and self.local_epochs is None:
            raise ValueError("local_epochs=null: give local_epochs or local_steps")
        return self

    def server_lr_of(self, task: int) -> float:
        """γ_G of task i: 1/i as in the paper, or a number."""
        return 1 / task if self.server_lr == "1/i" else float(self.server_lr)

    def client_lr_of(self, task: int, round: int) -> float:
        """γ_L of a round: decays every round, starting again at each task unless told otherwise."""
        age = round if self.client_lr_reset else (task - 1) * self.rounds + round
        return self.client_lr * self.client_lr_decay**age

    def options_for(self, known: Collection[str]) -> Settings:
        """The options of the benchmark's reader. One that cuts texts uses the encoder's tokenizer unless told."""
        return {"encoder": self.encoder, **self.options} if self.encoder and "encoder" in known else self.options


@dataclass(frozen=True)
class Resolved:
    """A run's words, all settled: the common ones, and the method's own."""

    config: Config
    method: Method

    def settings(self) -> Settings:
        """Flat, every default written out; resolving them again gives the same run."""
        settings = self.config.model_dump(mode="json")
        return settings | {key: value for key, value in asdict(self.method).items() if value is not None}


def merge_settings(given: Mapping[str, Any]) -> Settings:
    """The user's words with the preset under them; everything but the method's own words is checked.

    Needs no torch: this is what a run directory holds from its first moment.
    """
    settings = dict(given)
    preset = preset_settings(str(settings.get("benchmark", Config().benchmark)))
    by_method = preset.pop("methods", {})
    base = {**preset, **{k: v for k, v in settings.items() if k != "benchmark" or "benchmark" not in preset}}
    steps, epochs = settings.get("local_steps"), settings.get("local_epochs")
    if steps is not None and epochs is not None:
        raise InputError(f"local_steps={steps} and local_epochs={epochs} are both given; give one")
    if settings.get("local_steps") is not None:
        base["local_epochs"] = None
    elif settings.get("local_epochs") is not None:
        base["local_steps"] = None
    if settings.get("encoder") is not None and "model" not in settings:
        base |= {"model": "transformer", "width": settings.get("width")}
    elif settings.get("model", "transformer") != "transformer" and "encoder" not in settings:
        base["encoder"] = None
    if settings.get("model", preset.get("model")) != preset.get("model") and "width" not in settings:
        base.pop("width", None)
    config = _common({k: v for k, v in base.items() if k in Config.model_fields})
    from fedspecial import methods

    methods.check_name(config.method)
    own = {k: v for k, v in by_method.get(config.method, {}).items() if not _replaced(k, settings)}
    return _with_options({**own, **base, "benchmark": config.benchmark, "method": config.method}, config)


def _with_options(settings: Settings, config: Config) -> Settings:
    """Settings that only the benchmark's reader knows, such as a CSV's label column, go into `options`."""
    from fedspecial.data import catalogue

    if config.benchmark.startswith("object:"):
        return settings
    readers = catalogue.entry(config.benchmark).options
    mine = {key: value for key, value in settings.items() if key in readers and key not in Config.model_fields}
    rest = {key: value for key, value in settings.items() if key not in mine}
    return {**rest, "options": {**config.options, **mine}} if mine else rest


def resolve(settings: Mapping[str, Any], method: Method | None = None) -> Resolved:
    """Check the words of `merge_settings` whole, the method's own included (or take a method object as it is)."""
    from pydantic import TypeAdapter

    from fedspecial import methods

    config = _common({k: v for k, v in settings.items() if k in Config.model_fields})
    if method is not None:
        method.check_settings(adaptive=config.optimizer != "sgd")
        return Resolved(config, method)
    own = {k: v for k, v in settings.items() if k not in Config.model_fields}
    kind = methods.find(config.method)
    known = [field.name for field in fields(kind)]
    for key in own:
        if key not in known:
            raise unknown_setting(key, config.method, known)
    try:
        method = TypeAdapter(kind).validate_python(own)
    except ValidationError as error:
        raise InputError(_one_line(error)) from None
    method.check_settings(adaptive=config.optimizer != "sgd")
    return Resolved(config, method)


def unknown_setting(key: str, method: str, own: list[str]) -> InputError:
    hint = did_you_mean(key, [*Config.model_fields, *own])
    mine = f"; {method} has {', '.join(own)}" if own else f"; {method} has no words of its own"
    return InputError(f"{key}: there is no such word in a run of method '{method}'{hint}{mine}")


def parse_pairs(pairs: list[str]) -> Settings:
    """``["lam=0.1", "domains=a,b"]`` → words."""
    settings: Settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"'{pair}': expected key=value")
        if key in settings:
            raise InputError(f"{key}: it is given twice ({settings[key]!r} and {value!r})")
        if value == "":
            raise InputError(f"{key}=: there is no value (write {key}=null for none)")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InputError(f"{key}={value}: the value cannot be read") from None
    return settings


def read_settings(path: Path) -> Settings:
    """A YAML file of words."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(settings, dict):
        raise InputError(f"{path}: expected lines of 'key: value'")
    return settings


@cache
def preset_names() -> list[str]:
    folder = resources.files("fedspecial") / "presets"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def preset_settings(name: str) -> Settings:
    """The preset of that name, or nothing."""
    if name not in preset_names():
        return {}
    text = (resources.files("fedspecial") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def data_folder(config: Config) -> Path | None:
    """Where real data lies: the word `data`, or the environment variable FEDSPECIAL_DATA."""
    folder = config.data or os.environ.get("FEDSPECIAL_DATA")
    return Path(folder) if folder else None


def _replaced(key: str, settings: Mapping[str, Any]) -> bool:
    """A preset's λ gives way to the user's μ."""
    return key == "lam" and settings.get("mu") is not None


def _common(settings: Settings) -> Config:
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
