"""What is there of a benchmark: file by file, sample by sample, against what was published."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from fedspecial.data import catalogue
from fedspecial.data.benchmarks.entries import Entry, Size
from fedspecial.data.formats.common import Request, Tick, silent
from fedspecial.errors import InputError

Level = Literal["ok", "note", "smaller", "bad"]
SHOWN = 5
"""So many missing files of a domain are named one by one; the rest are counted."""


@dataclass(frozen=True)
class Finding:
    """One line of the report. "smaller" and "note" are for the strict only; "bad" is missing or unreadable."""

    level: Level
    line: str


def exit_code(findings: list[Finding], strict: bool) -> int:
    """0 if all can be used, 2 if not; with `strict` also if it is less than, or other than, what was published."""
    levels = {finding.level for finding in findings}
    return 2 if "bad" in levels or (strict and levels & {"smaller", "note"}) else 0


def found_sizes(name: str, data: Path | None) -> dict[str, Size]:
    """Samples by domain as the files' headers and names tell, without reading them; only what is there."""
    entry = catalogue.entry(name)
    if not entry.needs_data or not entry.domains:
        return {}
    try:
        request = catalogue.request_for(name, data)
    except InputError:
        return {}
    module, found = import_module(f"fedspecial.data.benchmarks.{entry.loader}"), {}
    for domain in entry.all_domains:
        try:
            found[domain] = module.count(request, domain)
        except (OSError, ValueError, KeyError, EOFError):
            continue
    return {domain: size for domain, size in found.items() if any(size)}


def check(
    name: str,
    *,
    data: Path | None = None,
    domains: tuple[str, ...] | None = None,
    tick: Tick = silent,
    **words: Any,
) -> Iterator[Finding]:
    """Read every sample once and say, domain by domain, what was found. `words` are those of `catalogue.load`."""
    entry = catalogue.entry(name)
    request = catalogue.request_for(name, data, domains, **_own(words)) if entry.needs_data else None
    usable = []
    for domain in request.domains if request else catalogue.pick(entry, domains):
        findings = list(_domain(entry, request, domain, data, tick, words))
        yield from findings
        if not any(finding.level == "bad" for finding in findings):
            usable.append(domain)
    if request and not entry.domains:
        yield from _own_data(name, data, domains, tick, words)
    elif len(usable) > 1:
        yield from _together(name, data, tuple(usable), words)


def _own(words: dict[str, Any]) -> dict[str, Any]:
    common = {"cap", "image_size", "seed", "on_bad", "cache", "notice", "fresh"}
    return {key: value for key, value in words.items() if key not in common}


def _domain(
    entry: Entry, request: Request | None, domain: str, data: Path | None, tick: Tick, words: dict[str, Any]
) -> Iterator[Finding]:
    if request is not None:
        missing = list(_missing(entry, request, domain))
        yield from missing
        if any(finding.level == "bad" for finding in missing):
            return
        yield from _checksums(entry, request, domain)
    skipped: list[str] = []
    try:
        benchmark = catalogue.load(
            entry.name, data=data, domains=(domain,), tick=tick, fresh=True,
            **{**words, "on_bad": "skip", "notice": skipped.append},
        )  # fmt: skip
    except InputError as error:
        yield Finding("bad", f"{domain}: {error}")
        return
    lenient = words.get("on_bad") == "skip"
    for line in skipped:
        level: Level = "bad" if "skipped" in line and not lenient else "note"
        yield Finding(level, line)
    found = benchmark.domains[0]
    shape = "×".join(map(str, benchmark.input_shape))
    labels = len(set(found.train.y.tolist()))
    counts = f"{len(found.train):,} train, {len(found.test):,} test"
    level, remark = _against(entry.sizes.get(domain), len(found.train), len(found.test), words.get("cap"))
    yield Finding(level, f"{domain}: {counts}, {shape}, {labels} labels{remark}")


def _against(published: Size | None, train: int, test: int, cap: int | None) -> tuple[Level, str]:
    """How the found sizes compare with the published ones."""
    if published is None:
        return "ok", ""
    if cap is not None:
        return "ok", f"; training part capped at {cap:,}"
    if published[1] is None:
        here, there = [train + test], [published[0]]
    else:
        here, there = [train, test], [published[0], published[1]]
    shown = " + ".join(f"{size:,}" for size in there)
    if here == there:
        return "ok", "; as published"
    if all(a <= b for a, b in zip(here, there, strict=True)):
        return "smaller", f"; smaller than published ({shown})"
    return "note", f"; differs from published ({shown})"


def _missing(entry: Entry, request: Request, domain: str) -> Iterator[Finding]:
    module = import_module(f"fedspecial.data.benchmarks.{entry.loader}")
    lacking = [path for path in module.needs(request, domain) if not path.exists()]
    if domain == "qnli" and [path.name for path in lacking] == ["train.tsv"]:
        yield Finding("smaller", f"qnli: {request.shown(lacking[0])} is missing{request.place(domain)}")
        return
    for path in lacking[:SHOWN]:
        yield Finding("bad", f"{domain}: {request.shown(path)} is missing{request.place(domain)}")
    if len(lacking) > SHOWN:
        yield Finding("bad", f"{domain}: and {len(lacking) - SHOWN:,} more files are missing")


def _checksums(entry: Entry, request: Request, domain: str) -> Iterator[Finding]:
    module = import_module(f"fedspecial.data.benchmarks.{entry.loader}")
    if not entry.md5:
        return
    for path in module.needs(request, domain):
        stem = path.name.removesuffix(".gz")
        wanted = entry.md5.get(f"{stem}:content") or entry.md5.get(path.name)
        if wanted is None:
            continue
        unpack = f"{stem}:content" in entry.md5
        same = _md5(path, unpack) == wanted
        what = f"checksum{' of its content' if unpack else ''} {'as' if same else 'other than'} published"
        yield Finding("ok" if same else "note", f"{domain}: {request.shown(path)}: {what}")


def _md5(path: Path, unpack: bool) -> str:
    try:
        with gzip.open(path) if unpack and path.suffix == ".gz" else path.open("rb") as stream:
            digest = hashlib.md5(usedforsecurity=False)
            while block := stream.read(2**20):
                digest.update(block)
    except (OSError, EOFError, zlib.error):
        return "unreadable"
    return digest.hexdigest()


def _own_data(
    name: str, data: Path | None, domains: tuple[str, ...] | None, tick: Tick, words: dict[str, Any]
) -> Iterator[Finding]:
    """A user's own data has no published size: it is enough that it can be used."""
    skipped: list[str] = []
    try:
        benchmark = catalogue.load(
            name, data=data, domains=domains, tick=tick, fresh=True,
            **{**words, "on_bad": "skip", "notice": skipped.append},
        )  # fmt: skip
    except InputError as error:
        yield Finding("bad", str(error))
        return
    level: Level = "note" if words.get("on_bad") == "skip" else "bad"
    yield from (Finding(level, line) for line in skipped)
    shape, classes = "×".join(map(str, benchmark.input_shape)), len(benchmark.classes)
    for domain in benchmark.domains:
        sites = f", {len(domain.sites)} sites" if domain.sites else ""
        counts = f"{len(domain.train):,} train, {len(domain.test):,} test"
        yield Finding("ok", f"{domain.name}: {counts}, {shape}, {classes} labels{sites}")


def _together(name: str, data: Path | None, domains: tuple[str, ...], words: dict[str, Any]) -> Iterator[Finding]:
    """The domains as one benchmark: shapes and label sets must agree."""
    try:
        catalogue.load(name, data=data, domains=domains, **{**words, "on_bad": "skip"})
    except InputError as error:
        yield Finding("bad", str(error))
        return
    yield Finding("ok", f"{len(domains)} domains agree in shape and labels")
