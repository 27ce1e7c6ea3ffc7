"""What a study is: data. A grid of runs, the metrics read from them, how they are shown, what is claimed of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fedspecial.paper.claims import Claim

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


@dataclass(frozen=True)
class Row:
    """A method, and the words in which it differs from its preset."""

    method: str
    settings: tuple[tuple[str, Any], ...] = ()
    note: str = ""

    @property
    def key(self) -> str:
        return " ".join([self.method, *(f"{key}={value}" for key, value in self.settings)])

    @property
    def stem(self) -> str:
        """The key as a part of a file's name."""
        return self.key.replace(" ", "-").replace("=", "-")

    @property
    def label(self) -> str:
        return LABELS.get(self.method, self.method) + self.note


@dataclass(frozen=True)
class Sweep:
    """One word takes several values. `values` are by scale."""

    word: str
    symbol: str
    values: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper.

    benchmarks: by scale, keys of `scales.SCALES`
    metrics:    keys of `readings.METRICS`; "task:*" stands for one column a domain
    layout:     "rows", a table for each benchmark (and value swept) with the methods as lines; "sweep", a table for
                each benchmark and method with the values as lines
    figure:     a key of `figures.FIGURES`
    seeds:      where the study needs no more than these
    rates:      sweeps of `fedspecial.theory` that belong to it
    pictured:   whether the paper shows this as a picture only, so that its numbers are not known
    printed_in: the studies whose printed numbers stand beside these, where they are others
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
    printed_in: tuple[str, ...] = ()
    pictured: bool = False

    @property
    def source(self) -> str:
        """A sentence's beginning: where in the paper this is, or that it is not there."""
        return (
            self.paper.replace("not", "Not", 1)
            if self.paper.startswith("not in the paper")
            else f"In the paper: {self.paper}"
        )

    @property
    def scales(self) -> tuple[str, ...]:
        return tuple(self.benchmarks)
