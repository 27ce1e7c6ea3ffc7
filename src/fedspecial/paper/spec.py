"""A study is data: a grid of runs, the metrics read from them, how these are shown, and the claims about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fedspecial.paper.claims.base import Claim

LABELS = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedcil": "FedCIL",
    "mfcl": "MFCL",
    "srfdil": "SR-FDIL",
    "pfeddil": "pFedDIL",
    "flwf2t": "FLwF-2T",
    "special-c": "SPECIAL-C",
    "special": "SPECIAL",
}
"""The methods that the paper compares."""
FURTHER_LABELS = {"special-plus": "SPECIAL+", "joint": "joint training (upper bound)"}
OUR_READING = ("srfdil",)
"""Methods whose text and code are not public, so that what we run is our reading of them."""


@dataclass(frozen=True)
class ByBenchmark:
    """A setting of a row whose value depends on the benchmark, for example a share of its samples.

    label:  the value as the row's key shows it
    values: (scale, benchmark, value); elsewhere the study does not have the row
    """

    label: str
    values: tuple[tuple[str, str, Any], ...]

    def __str__(self) -> str:
        return self.label

    def at(self, scale: str, benchmark: str) -> Any | None:
        return next((value for *where, value in self.values if where == [scale, benchmark]), None)


@dataclass(frozen=True)
class Row:
    """A row of a table: a method, and the settings in which it differs from its preset.

    times: how many times as long a run takes as one with the preset's settings; for estimates only
    """

    method: str
    settings: tuple[tuple[str, Any], ...] = ()
    note: str = ""
    times: float = 1.0

    def settings_at(self, scale: str, benchmark: str) -> dict[str, Any] | None:
        """The row's settings on a benchmark, or None if the study does not have the row there."""
        found = {
            key: value.at(scale, benchmark) if isinstance(value, ByBenchmark) else value for key, value in self.settings
        }
        varying = (key for key, value in self.settings if isinstance(value, ByBenchmark))
        return None if any(found[key] is None for key in varying) else found

    @property
    def key(self) -> str:
        return " ".join([self.method, *(f"{key}={value}" for key, value in self.settings)])

    @property
    def stem(self) -> str:
        """The key in a form that suits a file name."""
        return self.key.replace(" ", "-").replace("=", "-").replace("%", "")

    @property
    def label(self) -> str:
        reading = " (our reading)" if self.method in OUR_READING else ""
        return {**LABELS, **FURTHER_LABELS}.get(self.method, self.method) + reading + self.note


@dataclass(frozen=True)
class Sweep:
    """One setting takes several values; `values` lists them for each scale."""

    setting: str
    symbol: str
    values: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Variant:
    """Other settings for all runs of a study than the benchmark has at a scale, for example another model.

    Settings that a search chose for the benchmark do not apply to it.

    seconds: duration of a FedAvg run on one core
    """

    settings: Mapping[str, Any]
    seconds: float


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper.

    paper:        the table or figure of the paper, or "not in the paper: ..." with the question that the study answers
    benchmarks:   by scale, keys of `scales.SCALES`
    metrics:      keys of `metrics.METRICS`; "task:*" means one column per domain
    layout:       "rows": one table per benchmark (and swept value) with the methods as rows; "sweep": one table per
                  benchmark and method with the swept values as rows
    figure:       a key of `figures.FIGURES`
    seeds:        fixed seeds, for a study that does not use the seeds of the command line
    rates:        sweeps of `fedspecial.theory` that belong to the study
    variant:      by scale, if the study's runs have another model or size than the benchmark
    figure_only:  whether the paper shows these results only in a figure, so that the exact numbers are not known
    published_in: the studies whose published numbers are shown next to ours, if not those of this study
    """

    name: str
    title: str
    paper: str
    varies: str
    benchmarks: Mapping[str, tuple[str, ...]]
    rows: tuple[Row, ...]
    metrics: tuple[str, ...]
    sweep: Sweep | None = None
    layout: Literal["rows", "sweep"] = "rows"
    figure: str | None = None
    claims: tuple[Claim, ...] = ()
    note: str = ""
    seeds: tuple[int, ...] | None = None
    rates: tuple[str, ...] = ()
    published_in: tuple[str, ...] = ()
    variant: Mapping[str, Variant] = field(default_factory=dict)
    figure_only: bool = False

    @property
    def source(self) -> str:
        """Where in the paper this is, or that it is not in the paper; the beginning of a sentence."""
        return (
            self.paper.replace("not", "Not", 1)
            if self.paper.startswith("not in the paper")
            else f"In the paper: {self.paper}"
        )

    @property
    def scales(self) -> tuple[str, ...]:
        return tuple(self.benchmarks)
