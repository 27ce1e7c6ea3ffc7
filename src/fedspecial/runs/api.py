"""Starting and resuming runs, from Python and from the command line.

Every run starts in the same way: `new_run` merges the settings and creates the run directory, `resume` executes what
the directory says. Nothing here imports torch before the directory exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial.config import EXECUTION, Settings, given_object, is_given_object, merge_settings, read_run_file, resolve
from fedspecial.errors import InputError
from fedspecial.runs import directory

if TYPE_CHECKING:
    from torch import nn

    from fedspecial.core.events import Event
    from fedspecial.data.benchmark import Benchmark, Domain
    from fedspecial.methods.base import Method
    from fedspecial.report.result import Result

    Listener = Callable[[Event], None]


def run(
    benchmark: str | Benchmark | Sequence[Domain] | None = None,
    *,
    method: str | Method | None = None,
    model: str | nn.Module | None = None,
    config: str | Path | None = None,
    out: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    **settings: Any,
) -> Result:
    """Train a federation on the benchmark's domains, one after another, and return the accuracies.

    Args:
        benchmark: a name (``fedspecial list benchmarks``), ``file.py:function``, a `Benchmark`, or a list of `Domain`;
            "digits-shift" without it.
        method: a name (``fedspecial list methods``), ``file.py:Class``, or an object such as ``Special(lam=0.1)``;
            "special" without it.
        model: a name (``fedspecial list models``), ``file.py:Class``, or a `torch.nn.Module` that maps a batch of
            inputs to class scores. Without it, the model of the benchmark's preset.
        config: a YAML file of settings; arguments given here win over it.
        out: the new run directory; ``runs/BENCHMARK-METHOD-NUMBER`` without it.
        listeners: functions that are called with every event of the run.
        **settings: any setting of ``fedspecial list settings``, such as ``rounds=10, seed=225``.

    Returns:
        The result, which is also saved in the run directory.

    Example:
        >>> import fedspecial
        >>> result = fedspecial.run("digits-shift", method="special", lam=0.25, rounds=2)  # doctest: +SKIP
        >>> print(f"ACC {result.acc:.3f}, BWT {result.bwt:.3f}")  # doctest: +SKIP
    """
    objects = Objects.of(benchmark, model, method)
    given = read_run_file(Path(config)) if config is not None else {}
    given |= objects.named() | settings | ({"out": str(out)} if out is not None else {})
    with new_run(given) as folder:
        return resume(
            folder, benchmark=objects.benchmark, model=objects.model, method=objects.method, listeners=listeners
        )


@contextmanager
def new_run(settings: Settings) -> Iterator[Path]:
    """A new run directory for these settings, ready for `resume`; it is removed if the run is refused at once."""
    with directory.created(merge_settings(settings)) as folder:
        yield folder


def resume(
    folder: str | Path,
    *,
    benchmark: Benchmark | Sequence[Domain] | None = None,
    model: nn.Module | None = None,
    method: Method | None = None,
    listeners: Sequence[Listener] = (),
    **execution: Any,
) -> Result:
    """Continue a run that was stopped or killed; the result is the same as without the interruption.

    Args:
        folder: the run directory.
        benchmark: the object that was passed to `run`, if one was; objects are not saved.
        model: likewise.
        method: likewise; not needed if its class can be imported.
        listeners: functions that are called with every event from here on.
        **execution: settings that say how the run is executed, such as ``workers=2``; they may differ from before.

    Returns:
        The result. That of a finished run is only read.

    Example:
        >>> import fedspecial
        >>> result = fedspecial.resume("runs/digits-shift-special-001")  # doctest: +SKIP
    """
    folder = Path(folder)
    finished = directory.finished(folder)
    if finished is not None:
        return finished
    settings = directory.settings(folder) | execution_settings(execution)
    objects = Objects.of(benchmark, model, method)
    objects.check_complete(settings, f"fedspecial.resume({str(folder)!r}, …)")
    with directory.claimed(folder):
        run_settings = resolve(settings, objects.method)
        from fedspecial.runs.execute import execute

        return execute(folder, run_settings, objects.benchmark, objects.model, tuple(listeners))


def execution_settings(given: Settings, reason: str = "a resumed run keeps its settings") -> Settings:
    """Settings that say how a run is executed; others are refused, since they would change its result."""
    for key, value in given.items():
        if key not in EXECUTION:
            raise InputError(f"{key}={value}: {reason}; only {', '.join(sorted(EXECUTION))} may change")
    return given


@dataclass(frozen=True)
class Objects:
    """Python objects that the caller passed instead of names; None for each that was named or left out."""

    benchmark: Benchmark | None = None
    model: nn.Module | None = None
    method: Method | None = None
    names: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(benchmark: Any, model: Any, method: Any) -> Objects:
        given = {"benchmark": benchmark, "model": model, "method": method}
        names = tuple((key, value) for key, value in given.items() if isinstance(value, str))
        objects = {key: value for key, value in given.items() if value is not None and not isinstance(value, str)}
        if "benchmark" in objects:
            from fedspecial.data.benchmark import Benchmark

            objects["benchmark"] = Benchmark.of(objects["benchmark"])
        return Objects(**objects, names=names)

    def named(self) -> Settings:
        """The settings that record these objects and names."""
        settings: Settings = dict(self.names)
        if self.benchmark is not None:
            settings["benchmark"] = given_object(self.benchmark.name)
        if self.model is not None:
            settings["model"] = given_object(type(self.model).__name__)
        if self.method is not None:
            settings |= settings_of_method(self.method)
        return settings

    def check_complete(self, settings: Settings, call: str) -> None:
        """Refuse if the run was started with an object that is not given now."""
        for key, value in (("benchmark", self.benchmark), ("model", self.model)):
            if is_given_object(settings.get(key)) and value is None:
                raise InputError(
                    f"{key}={settings[key]['object']}: this run was started with a Python object, which is not saved; "
                    f"pass it again from Python: {call.replace('…', f'{key}=…')}"
                )


def settings_of_method(method: Method) -> Settings:
    """The settings that make the same method again: its name and its hyper-parameters."""
    from fedspecial import methods

    kind = type(method)
    built_in = method.name in methods.names() and methods.find(method.name) is kind
    name = method.name if built_in else f"{kind.__module__}:{kind.__qualname__}"
    return {"method": name, **{key: value for key, value in asdict(method).items() if value is not None}}
