"""A benchmark from the user's own code: ``benchmark=file.py:function``.

The function returns a `Benchmark` or a list of `Domain`. It is called with those of the settings data, domains, cap,
image_size and seed that it has parameters for, all by keyword::

    def two_domains(seed: int) -> list[Domain]:
        ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fedspecial.core.imports import describe_error, load_object
from fedspecial.data.entry import Entry
from fedspecial.data.loading.request import LoadRequest
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

ARGUMENTS = ("data", "domains", "cap", "image_size", "seed")


def user_function_entry(spec: str) -> Entry:
    """The catalogue entry of a function; the function is not called before the benchmark is loaded."""
    return Entry(
        name=spec,
        title=f"the function {spec}",
        kind=None,
        domains=(),
        num_classes=0,
        licence="",
        load=partial(_load, spec),
        needs_data=False,
    )


def _load(spec: str, request: LoadRequest) -> Benchmark:
    function = load_object(spec, "benchmark")
    if not callable(function):
        raise InputError(f"benchmark='{spec}': '{spec.rpartition(':')[2]}' is not a function")
    settings = {
        "data": request.root if request.root.parts else None,
        "domains": request.domains or None,
        "cap": request.cap,
        "image_size": request.image_size,
        "seed": request.seed,
    }
    accepted = _accepted(spec, function, settings)
    try:
        found = function(**accepted)
    except InputError as error:
        raise InputError(f"benchmark='{spec}': {error}") from error
    except Exception as error:  # user code can raise anything
        raise InputError(f"benchmark='{spec}': the function raised {describe_error(error)}") from error
    benchmark = _as_benchmark(spec, found)
    return benchmark if "domains" in accepted else _select(spec, benchmark, request.domains)


def _accepted(spec: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the function has parameters for. A setting must not be dropped without the user knowing."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(settings)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for parameter in parameters:
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if required and (parameter.name not in settings or parameter.name not in names):
            raise InputError(
                f"benchmark='{spec}': parameter '{parameter.name}' needs a default; "
                f"the function is called with {', '.join(ARGUMENTS)} by keyword"
            )
    for key in ("cap", "image_size"):
        if settings[key] is not None and key not in names:
            raise InputError(f"{key}={settings[key]}: the function of benchmark='{spec}' has no parameter '{key}'")
    return {key: value for key, value in settings.items() if key in names}


def _as_benchmark(spec: str, found: object) -> Benchmark:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.samples import Domain

    if isinstance(found, Benchmark):
        return found
    if isinstance(found, list | tuple) and found and all(isinstance(domain, Domain) for domain in found):
        return Benchmark.of(found, name=spec.rpartition(":")[2])
    what = (
        "an empty list" if isinstance(found, list | tuple) and not found else f"a value of type {type(found).__name__}"
    )
    raise InputError(f"benchmark='{spec}': the function returned {what}, expected a Benchmark or a list of Domain")


def _select(spec: str, benchmark: Benchmark, domains: tuple[str, ...]) -> Benchmark:
    if not domains:
        return benchmark
    by_name = {domain.name: domain for domain in benchmark.domains}
    for name in domains:
        if name not in by_name:
            raise InputError(
                f"domains={name}: '{spec}' has no such domain, only {', '.join(by_name)}{did_you_mean(name, by_name)}"
            )
    return replace(benchmark, domains=tuple(by_name[name] for name in domains))
