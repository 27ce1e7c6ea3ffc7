"""What the server writes down about one attempt at a round. Needs neither Flower nor torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Site = int | str
Outcome = Literal["completed", "held", "failed"]


@dataclass(frozen=True)
class Refusal:
    """One reply that was not used: which site, and why."""

    site: Site
    reason: str

    def __str__(self) -> str:
        return f"site {self.site}: {self.reason}"


@dataclass(frozen=True)
class Answer:
    """One reply that was used: its size and hash as received, and the norm of the update it stands for."""

    site: Site
    bytes: int
    sha256: str
    norm: float


@dataclass(frozen=True)
class RoundRecord:
    """One attempt at a round.

    outcome:     completed (the model is the new one), held (too few answers: the old one stays), failed (given up)
    model_*:     hashes of the model before and after; equal unless completed
    drift:       distance to the anchor after the round, where there is one
    certificate: the caps that drift is held against, as `theory` gives them
    """

    task: int
    round: int
    asked: list[Site]
    outcome: Outcome
    model_before: str
    model_after: str
    answers: list[Answer] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    drift: float | None = None
    certificate: dict[str, Any] | None = None
