"""Several methods and seeds on the same federation, summarized as mean ± standard deviation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial.config import (
    Config,
    Settings,
    benchmark_of_preset,
    is_given_object,
    merge_settings,
    refuse_unread_data,
    resolve,
    unknown_setting,
)
from fedspecial.config.paths import short_name
from fedspecial.core.files import write_atomic
from fedspecial.errors import InputError
from fedspecial.runs import directory
from fedspecial.runs.api import resume
from fedspecial.runs.jobs import Job, each_once, progress_shown, run_in_process, run_missing
from fedspecial.runs.main_guard import refuse_in_starting_process
from fedspecial.runs.objects import Objects, refuse_settings_of, settings_of_method

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.samples import Domain
    from fedspecial.methods.base import Method
    from fedspecial.objectives.base import Objective
    from fedspecial.report.comparison import Summary
    from fedspecial.report.result import Result
    from fedspecial.runs.modules import GivenModel

SEEDS = (25, 225, 2025)
"""The seeds of the paper."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The results of `compare`, by method, one for each seed; printing it gives a Markdown table."""

    folder: Path
    results: Mapping[str, list[Result]]

    @property
    def summaries(self) -> dict[str, Summary]:
        """Mean and standard deviation over the seeds, by method."""
        from fedspecial.report.comparison import Summary

        return {name: Summary.of(results) for name, results in self.results.items()}

    def to_frame(self) -> DataFrame:
        """A pandas table with a row for each run: method, seed, ACC, BWT, worst drop, forgetting and costs."""
        from fedspecial.report.frames import comparison_frame

        return comparison_frame(self.results)

    def _repr_html_(self) -> str:
        from fedspecial.report.html import comparison_html

        return comparison_html(self.results)

    def __repr__(self) -> str:
        seeds = sorted({result.seed for results in self.results.values() for result in results})
        named = ", ".join(map(str, seeds))
        return f"<Comparison of {', '.join(self.results)}; seeds: {named}; in {self.folder}>"

    def __str__(self) -> str:
        from fedspecial.report.comparison import markdown

        return markdown(dict(self.results))


def compare(
    benchmark: str | Benchmark | Sequence[Domain] = "digits-shift",
    methods: Sequence[str | Method] = ("special", "fedavg"),
    seeds: Sequence[int] = SEEDS,
    *,
    model: str | GivenModel | None = None,
    objective: str | Objective | None = None,
    jobs: int | None = None,
    out: str | Path | None = None,
    tick: Callable[[Sequence[Job]], None] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Comparison:
    """Run several methods with several seeds on the same federation.

    Args:
        benchmark: a name, ``file.py:function``, a `Benchmark`, or a list of `Domain`.
        methods: names, ``file.py:Class``, or objects such as ``Special(lam=0.1)``.
        seeds: each method runs once with each seed.
        model: a name, ``file.py:Class``, a `torch.nn.Module`, of which every run trains a copy, so that all start from
            the same weights, or a function that returns one, whose weights depend on the seed.
        objective: a name, ``file.py:NAME``, or an `Objective`.
        jobs: how many runs at the same time; as many as there are cores if not given. If benchmark, model or
            objective is an object, runs follow one another in this process.
        out: folder of the runs; finished ones are reused and stopped ones continued. ``runs/compare-BENCHMARK-NUMBER``
            if not given.
        tick: called about four times a second with the list of runs, to show progress in another way.
        progress: show a bar on a terminal or in a notebook, on standard error; not with `tick`.
        **settings: settings of all runs, such as ``rounds=10``. A setting that only some of the methods have
            applies to those.

    Returns:
        The results by method. The folder also has them as ``comparison.md`` and ``comparison.png``.

    Examples:
        >>> import fedspecial
        >>> table = fedspecial.compare("digits-shift", ["special", "fedavg"], seeds=[25], rounds=2)  # doctest: +SKIP
        >>> print(table)  # doctest: +SKIP
    """
    refuse_in_starting_process()
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs={jobs}: must be at least 1")
    objects = Objects.of(benchmark, model, None, objective)
    if objects.benchmark is None:
        refuse_unread_data({**settings, "benchmark": benchmark})
    given = {**settings, **objects.named()}
    name = objects.benchmark.name if objects.benchmark is not None else short_name(benchmark)
    folder = Path(out) if out is not None else directory.next_number(f"compare-{name}")
    planned = plan(given.pop("benchmark"), methods, seeds, given, folder, objects.objective)
    with progress_shown(planned, progress and tick is None) as show_line:
        show = (lambda: tick(planned)) if tick is not None else show_line
        if objects.benchmark is None and objects.model is None and objects.objective is None:
            run_missing(planned, jobs, show)
        else:
            run_in_process(planned, objects, show)
    comparison = Comparison(folder, _results(planned, objects.model))
    _write_summary(comparison)
    return comparison


def plan(
    benchmark: str | Settings,
    chosen: Sequence[str | Method],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    out: Path,
    objective: Objective | None = None,
) -> list[Job]:
    """All runs, checked before the first one starts. A method's own setting goes only to methods that have it."""
    for key, instead in (("method", "methods"), ("seed", "seeds")):
        if key in settings:
            raise InputError(f"{key}={settings[key]}: compare takes several; write {instead}=[…]")
    chosen, seeds = each_once("methods", chosen, "'special', 'fedavg'"), each_once("seeds", seeds, "25, 225")
    for method in chosen:
        if not isinstance(method, str):
            refuse_settings_of(method, settings)
    each = [{"method": method} if isinstance(method, str) else settings_of_method(method) for method in chosen]
    own = {mine["method"]: mine for mine in each}
    each_once("methods", [mine["method"] for mine in each], "'special', 'fedavg'")
    known = {name: _fields(name) for name in own}
    options = list(_reader_options(benchmark))
    common = {*Config.model_fields, *options, "methods"}
    for key in settings:
        if key not in common and not any(key in names for names in known.values()):
            all_own = sorted({name for names in known.values() for name in names})
            raise unknown_setting(key, ", ".join(own), all_own, options)
    jobs = []
    for name, mine in own.items():
        shared = {key: value for key, value in settings.items() if key in common or key in known[name]}
        for seed in seeds:
            folder = out / f"{name.replace(':', '-').replace('/', '-')}-{seed}"
            given = {**shared, **mine, "benchmark": benchmark, "seed": seed, "out": str(folder)}
            merged = merge_settings(given)
            resolve(merged, objective=objective)
            jobs.append(Job(name, seed, merged, folder))
    return jobs


def _fields(method: str) -> list[str]:
    from fedspecial import methods

    return [field.name for field in fields(methods.find(method))]


def _reader_options(benchmark: str | Settings) -> Iterable[str]:
    """Settings that only the benchmark's reader has, such as a CSV's label column."""
    from fedspecial.config.resolve import reader_options

    return () if is_given_object(benchmark) else reader_options(benchmark_of_preset(str(benchmark)))


def _results(jobs: Sequence[Job], model: GivenModel | None) -> dict[str, list[Result]]:
    results: dict[str, list[Result]] = {}
    for job in jobs:
        results.setdefault(job.method, []).append(resume(job.folder, model=model))
    return results


def _write_summary(comparison: Comparison) -> None:
    from fedspecial.report.comparison import draw_matrices

    results = dict(comparison.results)
    draw_matrices(results, comparison.folder / "comparison.png")
    write_atomic(comparison.folder / "comparison.md", str(comparison).encode())
