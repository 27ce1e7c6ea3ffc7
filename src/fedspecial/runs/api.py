"""Starting and resuming runs, from Python and from the command line.

Every run starts in the same way: `new_run` merges the settings and creates the run directory, `resume` executes what
the directory says. Nothing here imports torch before the directory exists.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial.config import EXECUTION, Settings, merge_settings, read_run_file, refuse_unread_data, resolve
from fedspecial.errors import InputError
from fedspecial.report.progress_line import ProgressLine, can_show
from fedspecial.runs import directory
from fedspecial.runs.main_guard import refuse_in_starting_process
from fedspecial.runs.objects import Objects, refuse_settings_of

log = logging.getLogger("fedspecial")

if TYPE_CHECKING:
    from torch import nn

    from fedspecial.core.events import Event
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.samples import Domain
    from fedspecial.methods.base import Method
    from fedspecial.objectives.base import Objective
    from fedspecial.report.result import Result
    from fedspecial.runs.modules import GivenModel

    Listener = Callable[[Event], None]


def run(
    benchmark: str | Benchmark | Sequence[Domain] | None = None,
    *,
    method: str | Method | None = None,
    model: str | GivenModel | None = None,
    objective: str | Objective | None = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train a federation on the benchmark's domains, one after another, and return the accuracies.

    Args:
        benchmark: a name (``fedspecial list benchmarks``), ``file.py:function``, a `Benchmark`, or a list of `Domain`;
            "digits-shift" if not given.
        method: a name (``fedspecial list methods``), ``file.py:Class``, or an object such as ``Special(lam=0.1)``;
            "special" if not given.
        model: a name (``fedspecial list models``), ``file.py:Class``, a `torch.nn.Module` that maps a batch of inputs
            to class scores, or a function that returns one. A module is copied and stays as it is; the weights that
            a function draws depend on `seed`. If not given, the model of the benchmark's preset.
        objective: the loss and the metrics: classification, multilabel, regression, segmentation, ``file.py:NAME``, or
            an `Objective`; "classification" if not given.
        config: a YAML file of settings; arguments of this call take precedence over it.
        out: the new run directory; ``runs/BENCHMARK-METHOD-NUMBER`` if not given.
        listeners: functions that are called with every event of the run.
        progress: show a bar on a terminal or in a notebook, on standard error.
        **settings: any setting of ``fedspecial list settings``, such as ``rounds=10, seed=225``.

    Returns:
        The result, which is also saved in the run directory (`result.folder`); `result.model` is the trained network.

    Examples:
        >>> import fedspecial
        >>> result = fedspecial.run("digits-shift", method="special", lam=0.25, rounds=2)  # doctest: +SKIP
        >>> print(f"ACC {result.acc:.3f}, BWT {result.bwt:.3f}")  # doctest: +SKIP
    """
    refuse_in_starting_process()
    objects = Objects.of(benchmark, model, method, objective)
    if objects.method is not None:
        refuse_settings_of(objects.method, settings)
    if not isinstance(config, str | Path | None):
        raise InputError(
            f"config: expected the path of a YAML file, not {type(config).__name__}; give settings by name"
        )
    if objects.benchmark is None:
        refuse_unread_data({**dict(objects.names), **settings})
    given = read_run_file(Path(config)) if config is not None else {}
    given |= objects.named() | settings | ({"out": str(out)} if out is not None else {})
    with new_run(given) as folder:
        result = resume(
            folder,
            benchmark=objects.benchmark,
            model=objects.model,
            method=objects.method,
            objective=objects.objective,
            listeners=listeners,
            progress=progress,
        )
    for text in result.warnings:
        log.warning("%s: %s", folder, text)
    return result


@contextmanager
def new_run(settings: Settings) -> Iterator[Path]:
    """A new run directory for these settings, ready for `resume`; it is removed if the run is refused at once."""
    with directory.created(merge_settings(settings)) as folder:
        yield folder


def resume(
    folder: str | Path,
    *,
    benchmark: Benchmark | Sequence[Domain] | None = None,
    model: GivenModel | None = None,
    method: Method | None = None,
    objective: Objective | None = None,
    listeners: Sequence[Listener] = (),
    progress: bool = True,
    **execution: Any,
) -> Result:
    """Continue a run that was stopped or killed; the result is the same as without the interruption.

    Args:
        folder: the run directory.
        benchmark: the object that was passed to `run`, if one was; objects are not saved.
        model: the module or function that was passed to `run`, if one was.
        method: the object that was passed to `run`, if one was; not needed if its class can be imported.
        objective: the object that was passed to `run`, if one was.
        listeners: functions that are called with every event from here on.
        progress: show a bar on a terminal or in a notebook, on standard error.
        **execution: settings that say how the run is executed, such as ``workers=2``; they may differ from before.

    Returns:
        The result. If the run is finished, its result is only read.

    Examples:
        >>> import fedspecial
        >>> result = fedspecial.resume("runs/digits-shift-special-001")  # doctest: +SKIP
    """
    refuse_in_starting_process()
    folder = Path(folder)
    finished = directory.finished(folder)
    objects = Objects.of(benchmark, model, method, objective)
    settings = directory.settings(folder) | execution_settings(execution)
    objects.check_same(settings, KEPT)
    if finished is not None:
        return _located(finished, folder, model)
    objects.check_complete(settings, f"fedspecial.resume({str(folder)!r}, …)")
    with directory.claimed(folder):
        if (finished := directory.finished(folder)) is not None:  # by another process, after the look above
            return _located(finished, folder, objects.model)
        return continue_run(folder, settings, objects, listeners, progress)


def continue_run(
    folder: Path,
    settings: Settings,
    objects: Objects,
    listeners: Sequence[Listener] = (),
    progress: bool = True,
    new: Sequence[str] = (),
) -> Result:
    """Execute what is left of the run of a directory that this process has claimed.

    new: domains by which a finished run is extended
    """
    _check_listeners(listeners)
    with directory.failure_recorded(folder):
        run_settings = resolve(settings, objects.method, objects.objective)
        from fedspecial.report.trackers import listeners_for
        from fedspecial.runs.execute import execute

        heard = (*listeners, *listeners_for(run_settings.config.trackers or (), folder))
        if progress and can_show(sys.stderr):
            heard = (*heard, ProgressLine())
        with directory.full_disk_refused(folder, f"continue with: fedspecial resume {folder}"):
            result = execute(folder, run_settings, objects.benchmark, objects.model, heard, new)
            return _located(result, folder, objects.model)


def _check_listeners(listeners: object) -> None:
    if callable(listeners) or not isinstance(listeners, Iterable):
        raise InputError(f"listeners={listeners}: expected a list of functions")
    for listener in listeners:
        if not callable(listener):
            raise InputError(f"listeners: expected functions, not {type(listener).__name__}")


KEPT = "a resumed run keeps its settings"


def execution_settings(given: Settings, reason: str = KEPT) -> Settings:
    """Settings that say how a run is executed; others are refused, since they would change its result."""
    for key, value in given.items():
        if key not in EXECUTION:
            raise InputError(f"{key}={value}: {reason}; only {', '.join(sorted(EXECUTION))} may change")
    return given


def _located(result: Result, folder: Path, model: GivenModel | None) -> Result:
    """The result with its run directory, from which `result.model` is read."""
    return replace(result, folder=folder, load_model=partial(_load_module, folder.resolve(), model))


def _load_module(folder: Path, model: GivenModel | None) -> nn.Module:
    from fedspecial.runs.load import load

    return load(folder, model=model).module
