"""The door for Python: ``fedspecial.run(benchmark="digits-shift", method="special", lam=0.25)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial.config import Settings, merge_settings, read_settings, resolve
from fedspecial.errors import InputError
from fedspecial.runs import directory as directory

if TYPE_CHECKING:
    from torch import nn

    from fedspecial.core.events import Event
    from fedspecial.data.benchmark import Benchmark, Domain
    from fedspecial.methods.base import Method
    from fedspecial.report.result import Result

    Listener = Callable[[Event], None]


def run(
    benchmark: str | Benchmark | Sequence[Domain] = "digits-shift",
    *,
    method: str | Method = "special",
    model: str | nn.Module | None = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    **settings: Any,
) -> Result:
    """Let a federation learn the benchmark's domains one after another; returns what was gained and lost.

    benchmark: a name (``fedspecial list benchmarks``), a `Benchmark`, or a list of `Domain`
    method:    a name, or a method object such as ``Special(lam=0.1)``
    model:     a name, or any `torch.nn.Module` that maps a batch to class scores
    words:     the words of a config, such as ``rounds=10, seed=225``

    >>> result = fedspecial.run("digits-shift", method="special", lam=0.25, seed=25)   # doctest: +SKIP
    >>> result.acc, result.bwt                                                        # doctest: +SKIP
    """
    given: Settings = read_settings(Path(config)) if config is not None else {}
    given.pop("about", None)
    given |= settings
    objects = Objects.of(benchmark, model, method, given)
    return start(objects.settings | given | ({"out": str(out)} if out is not None else {}), objects, listeners)


def start(settings: Settings, objects: Objects | None = None, listeners: Sequence[Listener] = ()) -> Result:
    """Begin a run from its words."""
    settings = merge_settings(settings)
    with directory.created(settings) as folder:
        return _execute(folder, settings, objects or Objects(), listeners)


def resume(
    folder: str | Path,
    *,
    benchmark: Benchmark | Sequence[Domain] | None = None,
    model: nn.Module | None = None,
    method: Method | None = None,
    listeners: Sequence[Listener] = (),
) -> Result:
    """Go on where a run stopped; a finished one is only read. Objects that were given to `run` are given again."""
    folder = Path(folder)
    finished = directory.finished(folder)
    if finished is not None:
        return finished
    settings = directory.settings(folder)
    return _execute(folder, settings, Objects.again(settings, benchmark, model, method), listeners)


class Objects:
    """Objects that the caller gave instead of names."""

    def __init__(
        self,
        settings: Settings | None = None,
        benchmark: Benchmark | None = None,
        model: nn.Module | None = None,
        method: Method | None = None,
    ) -> None:
        self.settings, self.benchmark, self.model, self.method = settings or {}, benchmark, model, method

    @staticmethod
    def of(benchmark: Any, model: Any, method: Any, given: Settings) -> Objects:
        settings: Settings = {}
        if isinstance(benchmark, str):
            settings["benchmark"] = given.pop("benchmark", benchmark)
            benchmark = None
        else:
            from fedspecial.data.benchmark import Benchmark

            benchmark = Benchmark.of(benchmark)
            settings["benchmark"] = f"object:{benchmark.name}"
        if isinstance(method, str):
            settings["method"] = given.pop("method", method)
            method = None
        else:
            from dataclasses import asdict

            settings["method"] = f"{type(method).__module__}:{type(method).__qualname__}"
            settings |= {key: value for key, value in asdict(method).items() if value is not None}
        if model is not None and not isinstance(model, str):
            settings["model"] = f"object:{type(model).__name__}"
        elif model is not None:
            settings["model"], model = model, None
        return Objects(settings, benchmark, model, method)

    @staticmethod
    def again(settings: Settings, benchmark: Any, model: Any, method: Any) -> Objects:
        for key, value in (("benchmark", benchmark), ("model", model)):
            if str(settings.get(key, "")).startswith("object:") and value is None:
                raise InputError(
                    f"{key}={settings[key]}: this run was given an object; resume it from Python with "
                    f"fedspecial.resume(folder, {key}=...)"
                )
        from fedspecial.data.benchmark import Benchmark

        return Objects({}, None if benchmark is None else Benchmark.of(benchmark), model, method)


def _execute(folder: Path, settings: Settings, objects: Objects, listeners: Sequence[Listener]) -> Result:
    with directory.claimed(folder):
        resolved = resolve(settings, objects.method)
        from fedspecial.runs.build import execute

        return execute(folder, resolved, objects.benchmark, objects.model, tuple(listeners))
