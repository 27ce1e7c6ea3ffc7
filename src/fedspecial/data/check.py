"""Compare the files of a benchmark with what was published: missing files, checksums, and every sample read once."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedspecial.data import catalogue
from fedspecial.data.absent_classes import describe_absent_classes, describe_single_class
from fedspecial.data.entry import Entry, Size
from fedspecial.data.impute import describe_missing
from fedspecial.data.loading.bad_rows import ignore
from fedspecial.data.loading.request import LoadRequest, Progress
from fedspecial.errors import InputError

Level = Literal["ok", "note", "smaller", "bad"]
MAX_NAMED = 5
"""At most this many missing files of a domain are named; the rest are counted."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    level: "bad" if something is missing or unreadable; "smaller" and "note" if the data differs from what was published
    """

    level: Level
    line: str


def exit_code(findings: list[Finding], strict: bool) -> int:
    """0 if all data can be used, else 2; with `strict` also 2 if the data differs from what was published."""
    levels = {finding.level for finding in findings}
    return 2 if "bad" in levels or (strict and levels & {"smaller", "note"}) else 0


def found_sizes(name: str, data: Path | None) -> dict[str, Size]:
    """The sizes of the domains that exist, from file headers and names, without reading the samples."""
    entry = catalogue.entry(name)
    if not entry.needs_data or not entry.domains:
        return {}
    try:
        request = catalogue.make_request(entry, data)
    except InputError:
        return {}
    found = {}
    for domain in entry.all_domains:
        try:
            found[domain] = entry.count(request, domain)
        except (OSError, ValueError, KeyError, EOFError):
            continue
    return {domain: size for domain, size in found.items() if any(size)}


def check(
    name: str,
    *,
    data: Path | None = None,
    domains: tuple[str, ...] | None = None,
    progress: Progress = ignore,
    **settings: Any,
) -> Iterator[Finding]:
    """Read every sample once and report per domain. `settings` are further arguments of `catalogue.load`."""
    entry = catalogue.entry(name)
    if not entry.domains:
        yield from _own_data(name, data, domains, progress, settings)
        return
    request = catalogue.make_request(entry, data, domains, **_own_options(settings))
    usable = []
    for domain in request.domains:
        findings = list(_domain(entry, request, domain, data, progress, settings))
        yield from findings
        if not any(finding.level == "bad" for finding in findings):
            usable.append(domain)
    if len(usable) > 1:
        yield from _together(name, data, tuple(usable), settings)


def _own_options(settings: dict[str, Any]) -> dict[str, Any]:
    common = {"cap", "image_size", "seed", "on_bad", "cache", "notice", "fresh", "targets"}
    return {key: value for key, value in settings.items() if key not in common}


def _domain(
    entry: Entry, request: LoadRequest, domain: str, data: Path | None, progress: Progress, settings: dict[str, Any]
) -> Iterator[Finding]:
    missing = list(_missing(entry, request, domain))
    yield from missing
    if any(finding.level == "bad" for finding in missing):
        return
    yield from _checksums(entry, request, domain)
    skipped: list[str] = []
    try:
        benchmark = catalogue.load(
            entry.name, data=data, domains=(domain,), progress=progress, fresh=True,
            **{**settings, "on_bad": "skip", "notice": skipped.append},
        )  # fmt: skip
    except InputError as error:
        yield Finding("bad", f"{domain}: {error}")
        return
    lenient = settings.get("on_bad") == "skip"
    for line in skipped:
        level: Level = "bad" if "skipped" in line and not lenient else "note"
        yield Finding(level, line)
    found = benchmark.domains[0]
    shape = "×".join(map(str, benchmark.input_shape))
    labels = len(set(found.train.y.tolist()))
    counts = f"{len(found.train):,} train, {len(found.test):,} test"
    level, remark = _against(entry.sizes.get(domain), len(found.train), len(found.test), settings.get("cap"))
    yield Finding(level, f"{domain}: {counts}, {shape}, {labels} labels{remark}")
    yield from (Finding("ok", line) for line in describe_absent_classes(benchmark))


def _against(published: Size | None, train: int, test: int, cap: int | None) -> tuple[Level, str]:
    """Compare the sizes found with the published sizes."""
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


def _missing(entry: Entry, request: LoadRequest, domain: str) -> Iterator[Finding]:
    missing = [path for path in entry.files(request, domain) if not path.exists()]
    optional, hint = entry.optional_files(request, domain), request.download_hint(domain)
    for path in missing[:MAX_NAMED]:
        level: Level = "smaller" if path in optional else "bad"
        yield Finding(level, f"{domain}: {request.display_name(path)} is missing{hint}")
    if len(missing) > MAX_NAMED:
        yield Finding("bad", f"{domain}: and {len(missing) - MAX_NAMED:,} more files are missing")


def _checksums(entry: Entry, request: LoadRequest, domain: str) -> Iterator[Finding]:
    for path in entry.files(request, domain) if entry.md5 else []:
        stem = path.name.removesuffix(".gz")
        published = entry.md5.get(f"{stem}:content") or entry.md5.get(path.name)
        if published is None or not path.exists():
            continue
        decompress = f"{stem}:content" in entry.md5
        same = _md5(path, decompress) == published
        what = f"checksum{' of its content' if decompress else ''} {'as' if same else 'differs from'} published"
        yield Finding("ok" if same else "note", f"{domain}: {request.display_name(path)}: {what}")


def _md5(path: Path, decompress: bool) -> str:
    try:
        with gzip.open(path) if decompress and path.suffix == ".gz" else path.open("rb") as stream:
            digest = hashlib.md5(usedforsecurity=False)
            while block := stream.read(2**20):
                digest.update(block)
    except (OSError, EOFError, zlib.error):
        return "unreadable"
    return digest.hexdigest()


def _own_data(
    name: str, data: Path | None, domains: tuple[str, ...] | None, progress: Progress, settings: dict[str, Any]
) -> Iterator[Finding]:
    """The user's own data has no published size: it only has to be usable."""
    skipped: list[str] = []
    try:
        benchmark = catalogue.load(
            name, data=data, domains=domains, progress=progress, fresh=True,
            **{**settings, "on_bad": "skip", "notice": skipped.append},
        )  # fmt: skip
    except InputError as error:
        yield from (Finding("bad", line) for line in skipped if "skipped" in line)
        yield Finding("bad", str(error))
        return
    lenient = settings.get("on_bad") == "skip"
    yield from (Finding("bad" if "skipped" in line and not lenient else "note", line) for line in skipped)
    shape = "×".join(map(str, benchmark.input_shape))
    outputs = f"{len(benchmark.classes)} {'labels' if benchmark.targets == 'classes' else 'targets'}"
    for domain in benchmark.domains:
        sites = f", {len(domain.sites)} sites" if domain.sites else ""
        counts = f"{len(domain.train):,} train, {len(domain.test):,} test"
        yield Finding("ok", f"{domain.name}: {counts}, {shape}, {outputs}{sites}")
    remarks = (*describe_missing(benchmark), *describe_absent_classes(benchmark), *describe_single_class(benchmark))
    yield from (Finding("note", line) for line in remarks)


def _together(name: str, data: Path | None, domains: tuple[str, ...], settings: dict[str, Any]) -> Iterator[Finding]:
    """The domains form one benchmark: shapes and label sets must agree."""
    try:
        benchmark = catalogue.load(name, data=data, domains=domains, **{**settings, "on_bad": "skip"})
    except InputError as error:
        yield Finding("bad", str(error))
        return
    lacking = len(describe_absent_classes(benchmark))
    labels = f"share the label set; {lacking} of them lack a class" if lacking else "labels"
    yield Finding("ok", f"{len(domains)} domains agree in shape and {labels}")
