"""Python objects that the caller passes instead of names: a benchmark, a model, a method, an objective.

Objects are not saved. A run directory records that there was one, and of a method its name and hyper-parameters, with
which an object that is passed again is compared. Nothing here imports torch before an object is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fedspecial.config import Settings, check_method_class, given_object, is_given_object
from fedspecial.config.values import plain_value
from fedspecial.errors import InputError

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.methods.base import Method
    from fedspecial.objectives.base import Objective
    from fedspecial.runs.modules import GivenModel


@dataclass(frozen=True)
class Objects:
    """Python objects that the caller passed instead of names; None for each that was named or left out."""

    benchmark: Benchmark | None = None
    model: GivenModel | None = None
    method: Method | None = None
    objective: Objective | None = None
    names: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(benchmark: Any, model: Any, method: Any, objective: Any = None) -> Objects:
        given = {"benchmark": benchmark, "model": model, "method": method, "objective": objective}
        names = tuple((key, value) for key, value in given.items() if isinstance(value, str))
        objects = {key: value for key, value in given.items() if value is not None and not isinstance(value, str)}
        if "benchmark" in objects:
            from fedspecial.data.benchmark import Benchmark
            from fedspecial.runs.devices import ordinary_torch

            with ordinary_torch():
                objects["benchmark"] = Benchmark.of(objects["benchmark"])
        if "method" in objects:
            check_method(objects["method"])
        if "model" in objects and not callable(objects["model"]):
            raise InputError(
                f"model={objects['model']!r}: expected a name, a torch.nn.Module, or a function that returns one"
            )
        if "objective" in objects:
            from fedspecial.objectives.base import Objective

            if not isinstance(objects["objective"], Objective):
                raise InputError(f"objective={objects['objective']!r}: expected a name or a fedspecial.Objective")
        return Objects(**objects, names=names)

    def named(self) -> Settings:
        """The settings that record these objects and names."""
        settings: Settings = dict(self.names)
        if self.benchmark is not None:
            settings["benchmark"] = given_object(self.benchmark.name)
        if self.model is not None:
            settings["model"] = given_object(_model_name(self.model))
        if self.objective is not None:
            settings["objective"] = given_object(self.objective.name)
        if self.method is not None:
            settings |= settings_of_method(self.method)
        return settings

    def check_same(self, settings: Settings, reason: str) -> None:
        """Refuse another benchmark, model, method or objective than the run has, which would not be used."""
        for key, name in self.names:
            if settings.get(key) != name:
                raise InputError(f"{key}={name}: {reason}; leave it out")
        for key in ("benchmark", "model", "objective"):
            if getattr(self, key) is not None and not is_given_object(settings.get(key)):
                raise InputError(f"{key}: {reason}, and it was started with {key}={settings.get(key)}; leave it out")
        self.check_same_method(settings, reason)

    def check_same_method(self, settings: Settings, reason: str) -> None:
        """Refuse an object of another method, or with other hyper-parameters, than the run was started with.

        The module of a class is not compared: that of a script is another one when the script is imported.
        """
        if self.method is None:
            return
        recorded, own = str(settings.get("method")), settings_of_method(self.method)["method"]
        if recorded.rpartition(":")[2] != own.rpartition(":")[2]:
            raise InputError(f"method={own}: {reason}, and it was started with method={recorded}; leave it out")
        for key, value in asdict(self.method).items():
            if key in settings and settings[key] != plain_value(value):
                raise InputError(f"{key}={value}: {reason}, and it was started with {key}={settings[key]}")

    def check_complete(self, settings: Settings, call: str) -> None:
        """Refuse if the run was started with an object that is not given now."""
        given = (("benchmark", self.benchmark), ("model", self.model), ("objective", self.objective))
        for key, value in given:
            if is_given_object(settings.get(key)) and value is None:
                raise InputError(
                    f"{key}={settings[key]['object']}: this run was started with a Python object, which is not saved; "
                    f"pass it again from Python: {call.replace('…', f'{key}=…')}"
                )


def _model_name(model: GivenModel) -> str:
    """The name of a function, or of the class of a module."""
    return str(getattr(model, "__name__", type(model).__name__)).strip("<>")


def check_method(method: Any) -> None:
    """Refuse anything but an object of a method's class."""
    from fedspecial.methods.base import Method

    if isinstance(method, type):
        raise InputError(f"method={method.__name__}: this is a class; give an object of it, {method.__name__}(…)")
    if not isinstance(method, Method):
        raise InputError(f"method={method!r}: expected a name or an object such as Special(lam=0.1)")
    check_method_class(type(method))


def refuse_settings_of(method: Method, settings: Mapping[str, Any]) -> None:
    """Refuse settings of a method beside an object of it, which has its own values of them."""
    check_method(method)
    for key, value in settings.items():
        if key in asdict(method):
            raise InputError(
                f"{key}={value}: the method was given as an object, which has {key}={getattr(method, key)}; "
                "give it there only"
            )


def settings_of_method(method: Method) -> Settings:
    """The settings that make the same method again: its name and its hyper-parameters."""
    from fedspecial import methods

    check_method(method)
    kind = type(method)
    built_in = method.name in methods.names() and methods.find(method.name) is kind
    name = method.name if built_in else f"{kind.__module__}:{kind.__qualname__}"
    return {"method": name, **{key: value for key, value in asdict(method).items() if value is not None}}
