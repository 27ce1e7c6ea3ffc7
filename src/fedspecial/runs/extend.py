"""Extending a finished run by further domains, into the same directory.

A run does not know how many domains there will be. One that is extended domain after domain therefore ends with the
model of a run that had all of them from the start, bit for bit. Classes, normalisation and columns are those with which
the run began (`schema.json`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial.config import Settings, is_given_object
from fedspecial.errors import InputError
from fedspecial.runs import directory
from fedspecial.runs.api import continue_run, execution_settings
from fedspecial.runs.main_guard import refuse_in_starting_process
from fedspecial.runs.objects import Objects

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.samples import Domain
    from fedspecial.methods.base import Method
    from fedspecial.objectives.base import Objective
    from fedspecial.report.result import Result
    from fedspecial.runs.api import Listener
    from fedspecial.runs.modules import GivenModel

KEPT = "an extension keeps the settings of its run"


def extend(
    folder: str | Path,
    domains: str | Domain | Sequence[str | Domain],
    *,
    benchmark: Benchmark | Sequence[Domain] | None = None,
    model: GivenModel | None = None,
    method: Method | None = None,
    objective: Objective | None = None,
    classes: Sequence[str] | None = None,
    listeners: Sequence[Listener] = (),
    progress: bool = True,
    **execution: Any,
) -> Result:
    """Go on with a finished run on further domains: from its model, its anchor and its state, in its directory.

    The model is the same, bit for bit, as that of a run that had all domains from the start. If the extension is
    stopped or killed, `resume` continues it, with all domains in its `benchmark`.

    Args:
        folder: the run directory.
        domains: one or more new domains: names, or `Domain` objects if the run was started with a Python object.
        benchmark: the object that was passed to `run`, if one was, with the domains that the run has learned.
        model: the module or function that was passed to `run`, if one was; objects are not saved.
        method: the object that was passed to `run`, if one was; not needed if its class can be imported.
        objective: the object that was passed to `run`, if one was.
        classes: all classes, the new ones at the end; only if a class-incremental run gets new ones.
        listeners: functions that are called with every event from here on.
        progress: show a bar on a terminal or in a notebook, on standard error.
        **execution: settings that say how the run is executed, such as ``workers=2``; they may differ from before.

    Returns:
        The result. Its matrix has one more row and column for each new domain; entries of a domain that was not known
        at the time are None.

    Examples:
        >>> import fedspecial
        >>> result = fedspecial.extend("runs/digits-shift-special-001", "photo")  # doctest: +SKIP
    """
    refuse_in_starting_process()
    folder = Path(folder)
    settings = directory.settings(folder) | execution_settings(execution, KEPT)
    for key, plain in (("stream", "sharp"), ("detect", "none")):
        if (value := settings.get(key, plain)) != plain:
            raise InputError(f"{key}={value}: the run of {folder} cannot be extended: its stream ends with its domains")
    given = [domains] if isinstance(domains, str) or not isinstance(domains, Sequence) else list(domains)
    joined = _joined(settings, given, benchmark, classes)
    objects = Objects.of(benchmark if joined is None else joined, model, method, objective)
    objects.check_same(settings, KEPT)
    objects.check_complete(settings, f"fedspecial.extend({str(folder)!r}, …)")
    names = [part if isinstance(part, str) else part.name for part in given]
    with directory.claimed(folder):
        _check_names(folder, names)
        _check_settings(settings, objects)
        return continue_run(folder, settings, objects, listeners, progress, names)


def _check_names(folder: Path, names: Sequence[str]) -> None:
    """Refuse if the run is not finished, and domains that it has learned already."""
    finished = directory.finished(folder)
    if finished is None:
        raise InputError(f"{folder}: the run is not finished; resume it first: fedspecial resume {folder}")
    if not names:
        raise InputError(f"{folder}: name at least one domain by which to extend the run")
    for name in names:
        if name in finished.tasks:
            learned = ", ".join(finished.tasks)
            raise InputError(f"domain '{name}': the run has learned it already (its domains: {learned})")
        if names.count(name) > 1:
            raise InputError(f"domain '{name}': it is given twice")


def _check_settings(settings: Settings, objects: Objects) -> None:
    from fedspecial import methods

    found = objects.method or methods.find(str(settings["method"]))
    if found.all_domains:
        raise InputError(
            f"method={found.name}: it trains on all domains in every task, so a run of it cannot be extended"
        )


def _joined(
    settings: Settings,
    given: Sequence[str | Domain],
    benchmark: Benchmark | Sequence[Domain] | None,
    classes: Sequence[str] | None,
) -> Benchmark | None:
    """The benchmark of a run that was started with a Python object, with the new domains at its end."""
    if not is_given_object(settings.get("benchmark")):
        for part in given:
            if not isinstance(part, str):
                raise InputError(f"domain '{part.name}': the run reads its data by name; give the names of domains")
        return None
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.samples import Domain

    new = []
    for part in given:
        if not isinstance(part, Domain):
            raise InputError(
                f"domain '{part}': this run was started with a Python object; extend it from Python: "
                "fedspecial.extend(folder, [Domain.of(…)], benchmark=…)"
            )
        new.append(part)
    if benchmark is None:
        return None
    if isinstance(benchmark, Benchmark):  # labels of the new domains are names, or positions among its classes
        return replace(benchmark, domains=(*benchmark.domains, *new), classes=tuple(classes or benchmark.classes))
    return Benchmark.of([*benchmark, *new], classes=classes)
