"""Benchmarks by name: look up an entry, load a benchmark.

A name is that of a built-in benchmark or ``file.py:function``. Importing this module does not import torch; loading
does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial.core.imports import is_object_name
from fedspecial.core.targets import TargetKind
from fedspecial.data.benchmarks import MODULES, built_in_entry
from fedspecial.data.entry import Entry
from fedspecial.data.loading.bad_rows import Notice, OnBad, ignore
from fedspecial.data.loading.request import LoadRequest, Progress
from fedspecial.data.user_function import user_function_entry
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.schema import DataSchema

VARIABLE = "FEDSPECIAL_DATA"


def names() -> list[str]:
    """All built-in benchmarks, in the order of the catalogue."""
    return list(MODULES)


def entry(name: str) -> Entry:
    """The description of one benchmark."""
    if name in MODULES:
        return built_in_entry(name)
    if is_object_name(name):
        return user_function_entry(name)
    hint = did_you_mean(name, names())
    own = f"your own files are read with: folders --data {name}" if Path(name).exists() else ""
    raise InputError(
        f"benchmark '{name}': not in the catalogue ({', '.join(names())}){hint}; "
        f"{own or 'a function of your own is written file.py:function'}"
    )


def load(
    name: str,
    *,
    data: Path | None = None,
    domains: tuple[str, ...] | None = None,
    cap: int | None = None,
    image_size: int | None = None,
    seed: int = 25,
    on_bad: OnBad = "stop",
    cache: Path | None = None,
    notice: Notice = ignore,
    progress: Progress = ignore,
    fresh: bool = False,
    targets: TargetKind = "classes",
    schema: DataSchema | None = None,
    **options: Any,
) -> Benchmark:
    """Load a benchmark and check it.

    data:       the data folder; the environment variable FEDSPECIAL_DATA if it is None
    domains:    the domains to load, in order; the benchmark's default domains if it is None
    cap:        maximum number of training samples per domain, drawn at random within each class
    image_size: side of the square images, if the benchmark resizes images
    seed:       of the split (if none is published) and of the cap
    on_bad:     "stop" at the first bad sample with its file and row, or "skip" and count bad samples
    cache:      folder of decoded images; the user's cache folder if it is None
    notice:     called with one line of text about something the user should know
    progress:   called with the number of samples decoded so far and the total
    fresh:      read the files again, even if the cache has them
    targets:    what the objective of the run needs
    schema:     of a trained model: inputs are made as in its training, and classes are matched by name
    options:    the benchmark's own options, see its entry
    """
    _check_arguments(cap, image_size, on_bad)
    chosen = entry(name)
    request = replace(
        make_request(chosen, data, domains, **options),
        seed=seed,
        cap=cap,
        image_size=image_size or _trained_size(chosen, schema),
        on_bad=on_bad,
        cache=cache,
        fresh=fresh,
        notice=notice,
        progress=progress,
        schema=schema,
        targets=targets,
    )
    benchmark = chosen.load(request)
    if name in MODULES:
        _check_targets(name, benchmark, targets)
    benchmark = benchmark.with_targets(targets)
    if chosen.licence:
        benchmark = replace(benchmark, licence=chosen.licence)
    if schema is not None:
        from fedspecial.data.matching import match

        benchmark = match(benchmark, schema, "the model")
    return benchmark.check()


def _check_arguments(cap: int | None, image_size: int | None, on_bad: str) -> None:
    if cap is not None and cap < 1:
        raise InputError(f"cap={cap}: must be at least 1")
    if image_size is not None and image_size < 8:
        raise InputError(f"image_size={image_size}: must be at least 8")
    if on_bad not in ("stop", "skip"):
        raise InputError(f"on_bad='{on_bad}': must be 'stop' or 'skip'")


def _check_targets(name: str, benchmark: Benchmark, targets: TargetKind) -> None:
    """The numbers of classes would pass for values."""
    if benchmark.targets == "classes" and targets not in ("classes", "any"):
        raise InputError(
            f"benchmark={name}: its targets are classes, which this objective does not use; read other targets from "
            "CSV or JSON lines (benchmark=folders), return them from a function of your own "
            "(benchmark=file.py:function) or pass domains from Python"
        )


def _trained_size(chosen: Entry, schema: DataSchema | None) -> int | None:
    """The size of the images that a trained model expects; a user's function is called as the user says."""
    return schema.image_size if schema is not None and chosen.kind is not None else None


def make_request(
    chosen: Entry, data: Path | None, domains: tuple[str, ...] | None = None, **options: Any
) -> LoadRequest:
    """A request for these domains with default settings, enough to see which files exist."""
    return LoadRequest(
        root=_data_folder(chosen, data),
        domains=choose_domains(chosen, domains),
        seed=0,
        sources=chosen.sources,
        options=merge_options(chosen, options),
    )


def choose_domains(chosen: Entry, domains: tuple[str, ...] | None) -> tuple[str, ...]:
    """The requested domains, each of them known. The user's own data may have any domains."""
    if not domains:
        return chosen.domains
    known = chosen.all_domains
    for domain in domains:
        if known and domain not in known:
            raise InputError(
                f"domains={domain}: '{chosen.name}' has no such domain, only {', '.join(known)}"
                f"{did_you_mean(domain, known)}"
            )
        if domains.count(domain) > 1:
            raise InputError(f"domains={domain}: is given twice")
    return tuple(domains)


def merge_options(chosen: Entry, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The defaults of the benchmark's own options, replaced by the given values."""
    for option in options:
        if option not in chosen.options:
            known = sorted(chosen.options)
            listed = f"; its options are {', '.join(known)}" if known else ""
            raise InputError(
                f"{option}: unknown option of '{chosen.name}'{listed}{did_you_mean(option, chosen.options)}"
            )
    return {**chosen.options, **options}


def _data_folder(chosen: Entry, data: Path | None) -> Path:
    folder = data or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if not chosen.needs_data:
        return folder or Path()
    if folder is None:
        raise InputError(f"benchmark '{chosen.name}' reads files: name their folder with --data or {VARIABLE}")
    if not folder.exists():
        raise InputError(f"data={folder}: there is no such file or folder")
    return folder
