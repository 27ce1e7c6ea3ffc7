"""What a loader is asked to load, and how it reports what happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedspecial.core.targets import TargetKind
from fedspecial.data.loading.bad_rows import Notice, OnBad, ignore
from fedspecial.data.schema import DataSchema
from fedspecial.errors import InputError

Progress = Callable[[int, int], None]
"""Called with the number of samples decoded so far and the total."""


@dataclass(frozen=True)
class LoadRequest:
    """The settings of one load.

    root:    the data folder
    fresh:   read the files again, even if the cache has them
    sources: where the files can be downloaded, by domain; "" for all domains
    options: the options that only this benchmark has
    targets: what the objective of the run needs
    schema:  of the model that the data is for, if it is trained already: rows and texts become inputs as it says
    """

    root: Path
    domains: tuple[str, ...]
    seed: int
    cap: int | None = None
    image_size: int | None = None
    on_bad: OnBad = "stop"
    cache: Path | None = None
    fresh: bool = False
    notice: Notice = ignore
    progress: Progress = ignore
    sources: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    targets: TargetKind = "classes"
    schema: DataSchema | None = None

    def display_name(self, path: Path) -> str:
        """A path for messages: relative to the data folder, or the file's name if the data is that one file."""
        if path == self.root:
            return path.name
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def download_hint(self, domain: str) -> str:
        """Where the files of a domain can be downloaded, for the end of an error message."""
        source = self.sources.get(domain) or self.sources.get("")
        return f" (get it from {source})" if source else ""

    def missing_file(self, path: Path, domain: str) -> InputError:
        """The error for a file that a domain needs and the data folder does not have."""
        return InputError(f"{self.display_name(path)}: not in the data folder {self.root}{self.download_hint(domain)}")
