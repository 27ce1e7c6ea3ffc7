"""Events of runs with a simulated clock or with asynchronous aggregation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

Loss = Literal["not available", "dropped out", "after the deadline", "not needed", "too stale", "task ended", "refused"]
"""Why a client's work was not used."""


@dataclass(frozen=True)
class UpdateLost:
    """Work of a client that was not used, though nothing was wrong with it.

    round:   the round or server step in which this was noticed · version: the one with which the client began
    time:    simulated seconds since the run began · worked: how many of them the client worked; None on real sites
    """

    event: ClassVar[str] = "update_lost"
    task: int
    round: int
    client: int
    version: int
    reason: Loss
    time: float | None = None
    worked: float | None = None


@dataclass(frozen=True)
class UpdateOrigin:
    """An update of a server step: the version that it began with, how many versions ago that was, its weight in the
    mean, and the norm of its weights."""

    client: int
    version: int
    staleness: int
    weight: float
    norm: float


@dataclass(frozen=True)
class ServerStep:
    """A server step and its time, or a synchronous round with the simulated clock.

    time:           simulated seconds since the run began; None on real sites
    waited:         simulated seconds since the previous step
    client_seconds: simulated seconds that clients worked for its updates; lost work is not counted here
    at_work:        clients that were still at work after it
    updates:        in asynchronous mode, where each update came from
    """

    event: ClassVar[str] = "server_step"
    task: int
    round: int
    time: float | None
    waited: float | None
    client_seconds: float | None
    at_work: int = 0
    updates: list[UpdateOrigin] = field(default_factory=list)
