"""The catalogue entry of a benchmark: what it is, where to get it, and the functions that load and inspect it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedspecial.data.schema import Kind

if TYPE_CHECKING:
    from fedspecial.data.benchmark import Benchmark
    from fedspecial.data.loading.request import LoadRequest

Size = tuple[int, int | None]
"""Numbers of training and test samples; the second is None if no split is published and the first counts all."""


def _no_files(request: LoadRequest, domain: str) -> list[Path]:
    return []


def _no_texts(request: LoadRequest, domain: str, classes: tuple[str, ...]) -> list[tuple[str, ...]]:
    return []


def _no_size(request: LoadRequest, domain: str) -> Size:
    return 0, None


@dataclass(frozen=True)
class Entry:
    """One benchmark of the catalogue.

    kind:           what a sample is; None for a user's function, whose kind is known only after it has been called
    domains:        the default domains, in the order in which they are learned
    extra_domains:  further domains that can be selected by name
    load:           reads the files and returns the benchmark
    files:          the files that a domain needs, whether they exist or not
    optional_files: those of `files` without which the domain can still be loaded
    count:          the number of samples of a domain, from file headers and names, without decoding anything
    example_texts:  one text of each class, for a figure, since token ids cannot be turned back into words
    features:       the names of a table's columns, for a figure
    sizes:          published sizes by domain
    md5:            published checksums by file name (`:content` for those of the decompressed bytes)
    sources:        where the files can be downloaded, by domain; "" for all domains
    options:        the options that only this benchmark has, with their defaults
    kind_of:        the kind of the data in a folder or file, where it depends on the data
    needs_data:     False if the benchmark is built in and reads no files
    """

    name: str
    title: str
    kind: Literal["image", "text", "table"] | None
    domains: tuple[str, ...]
    num_classes: int
    licence: str
    load: Callable[[LoadRequest], Benchmark]
    files: Callable[[LoadRequest, str], list[Path]] = _no_files
    optional_files: Callable[[LoadRequest, str], list[Path]] = _no_files
    count: Callable[[LoadRequest, str], Size] = _no_size
    example_texts: Callable[[LoadRequest, str, tuple[str, ...]], list[tuple[str, ...]]] = _no_texts
    features: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    extra_domains: tuple[str, ...] = ()
    sizes: Mapping[str, Size] = field(default_factory=dict)
    md5: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    incremental: Literal["domain", "class"] = "domain"
    kind_of: Callable[[Path], Kind] | None = None
    needs_data: bool = True

    @property
    def all_domains(self) -> tuple[str, ...]:
        return self.domains + self.extra_domains
