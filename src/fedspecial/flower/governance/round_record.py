"""The record of one attempt at a round, as the audit log keeps it. Needs neither Flower nor torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

SiteName = int | str
RoundOutcome = Literal["completed", "skipped", "failed"]


@dataclass(frozen=True)
class Refusal:
    """One reply that was not used: which site, and why."""

    site: SiteName
    reason: str

    def __str__(self) -> str:
        return f"site {self.site}: {self.reason}"


@dataclass(frozen=True)
class UpdateRecord:
    """One reply that was used: its size and hash as received, and the norm of its update."""

    site: SiteName
    bytes: int
    sha256: str
    norm: float

    @staticmethod
    def of(site: SiteName, size: int, arrays: Mapping[str, NDArray[Any]], norm: float) -> UpdateRecord:
        sha = hashlib.sha256()
        for name in sorted(arrays):
            sha.update(name.encode())
            sha.update(np.ascontiguousarray(arrays[name]).data)
        return UpdateRecord(site, size, sha.hexdigest(), norm)


@dataclass(frozen=True)
class RoundRecord:
    """One attempt at a round.

    requested: the sites that were sent a training request
    outcome:   completed (there is a new model), skipped (no quorum, the model stays as it is, the run continues),
               failed (no quorum, the run stops)
    model_*:   hashes of the model before and after; equal unless the round was completed
    drift:     distance of the model to the anchor after the round, if there is an anchor
    quorum:    how many usable updates the round needed
    """

    task: int
    round: int
    requested: list[SiteName]
    outcome: RoundOutcome
    model_before: str
    model_after: str
    updates: list[UpdateRecord] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    drift: float | None = None
    quorum: int | None = None


@dataclass
class RoundCollector:
    """Collects, while a round runs, what its record will contain.

    refusals:   since the last record was written, so they may include replies to earlier requests
    audit_head: hash of the last line of the audit log; the checkpoint stores it
    receipt:    the same, signed, as the sites store it
    """

    requested: list[str] = field(default_factory=list)
    updates: dict[str, UpdateRecord] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    audit_head: str = ""
    receipt: dict[str, Any] = field(default_factory=dict)

    def begin_round(self, requested: list[str]) -> None:
        self.requested, self.updates = requested, {}

    def add_update(self, site: str, update: UpdateRecord) -> None:
        self.updates[site] = update

    def add_refusal(self, site: str, reason: str) -> None:
        """The site may still send a usable reply if the request is repeated."""
        self.refusals.append(Refusal(site, reason))

    def withdraw_update(self, site: str) -> bool:
        """Remove an update that the engine accepted but the loop did not use; False if there is none."""
        return self.updates.pop(site, None) is not None

    def take_refusals(self) -> list[Refusal]:
        """Return the refusals collected so far and start a new list."""
        refusals, self.refusals = self.refusals, []
        return refusals
