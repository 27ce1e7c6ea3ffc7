"""The named benchmarks: what each is, where a person gets it, and how it is loaded.

Importing this does not import torch; loading does. Adding a benchmark is one reader and one entry in
`entries.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspecial.data.benchmarks.entries import ENTRIES, Entry
from fedspecial.data.formats.common import Notice, OnBad, Request, Tick, silent
from fedspecial.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark

VARIABLE = "FEDSPECIAL_DATA"


def names() -> list[str]:
    """All benchmarks, in the order the catalogue tells them."""
    return [entry.name for entry in ENTRIES]


def entry(name: str) -> Entry:
    """One benchmark's description."""
    for candidate in ENTRIES:
        if candidate.name == name:
            return candidate
    raise InputError(f"benchmark '{name}': not in the catalogue ({', '.join(names())}){did_you_mean(name, names())}")


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
    notice: Notice = silent,
    tick: Tick = silent,
    fresh: bool = False,
    **options: Any,
) -> Benchmark:
    """A benchmark, checked.

    data:       the data folder; without it the environment variable FEDSPECIAL_DATA
    domains:    which domains, in which order; without it the benchmark's own
    cap:        at most so many training samples a domain, a random and class-representative choice
    image_size: side of the square images, where they are resized at all
    seed:       of the split (where none is published) and of the cap
    on_bad:     "stop" at the first bad sample with its file and row, or "skip" and count it
    cache:      folder of decoded images; without it the user's cache folder
    notice:     is told what happened in passing, a line at a time
    tick:       is told how many samples of how many have been decoded
    fresh:      read the files again although they are in the cache
    options:    the benchmark's own, see its entry
    """
    if cap is not None and cap < 1:
        raise InputError(f"cap={cap}: must be at least 1")
    if image_size is not None and image_size < 8:
        raise InputError(f"image_size={image_size}: must be at least 8")
    if on_bad not in ("stop", "skip"):
        raise InputError(f"on_bad='{on_bad}': must be 'stop' or 'skip'")
    chosen = entry(name)
    if not chosen.needs_data:
        from fedspecial.data.benchmarks import digits_shift

        return digits_shift.load(domains=domains, cap=cap, **merged(chosen, options)).check()
    request = Request(
        root=_root(chosen, data),
        domains=pick(chosen, domains),
        seed=seed,
        cap=cap,
        image_size=image_size,
        on_bad=on_bad,
        cache=cache,
        fresh=fresh,
        notice=notice,
        tick=tick,
        places=chosen.places,
        options=merged(chosen, options),
    )
    found: Benchmark = import_module(f"fedspecial.data.benchmarks.{chosen.loader}").load(request, chosen.classes)
    return replace(found, licence=chosen.licence).check()


def request_for(name: str, data: Path | None, domains: tuple[str, ...] | None = None, **options: Any) -> Request:
    """What a loader would be asked, for those who only want to know what is there."""
    chosen = entry(name)
    return Request(
        root=_root(chosen, data),
        domains=pick(chosen, domains),
        seed=0,
        places=chosen.places,
        options=merged(chosen, options),
    )


def pick(chosen: Entry, domains: tuple[str, ...] | None) -> tuple[str, ...]:
    """The domains asked for, each known; a user's own data may have any."""
    if not domains:
        return chosen.domains
    known = chosen.all_domains
    for domain in domains:
        if known and domain not in known:
            raise InputError(
                f"domains: '{chosen.name}' has no domain '{domain}', only {', '.join(known)}"
                f"{did_you_mean(domain, known)}"
            )
        if domains.count(domain) > 1:
            raise InputError(f"domains: '{domain}' is there twice")
    return tuple(domains)


def merged(chosen: Entry, options: Mapping[str, Any]) -> Mapping[str, Any]:
    for option in options:
        if option not in chosen.options:
            known = sorted(chosen.options)
            listed = f"; it has {', '.join(known)}" if known else ""
            raise InputError(
                f"{option}: '{chosen.name}' has no such option{listed}{did_you_mean(option, chosen.options)}"
            )
    return {**chosen.options, **options}


def _root(chosen: Entry, data: Path | None) -> Path:
    if not chosen.needs_data:
        return Path()
    place = data or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if place is None:
        raise InputError(f"benchmark '{chosen.name}' reads files: say where they are with --data or {VARIABLE}")
    if not place.exists():
        raise InputError(f"data={place}: there is no such folder")
    return place
