"""Simulated time, the work of clients, and staleness, from the events of a run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fedspecial.core.events import of_kind

Events = Sequence[dict[str, Any]]


def total_time(events: Events) -> float | None:
    """Simulated seconds; None without a simulated clock."""
    steps = of_kind(events, "server_step")
    return steps[-1]["time"] if steps else None


def lost_work(events: Events) -> float:
    """Simulated seconds of clients whose work was not used."""
    return float(sum(event["worked"] or 0.0 for event in of_kind(events, "update_lost")))


def client_work(events: Events) -> float | None:
    """Simulated seconds of all clients, lost work included; None without a simulated clock."""
    steps = of_kind(events, "server_step")
    if not steps or steps[-1]["time"] is None:
        return None
    return float(sum(event["client_seconds"] for event in steps) + lost_work(events))


def staleness(events: Events) -> list[int]:
    """The staleness of every used update; empty in synchronous runs."""
    return [update["staleness"] for event in of_kind(events, "server_step") for update in event["updates"]]


def mean_staleness(events: Events) -> float | None:
    ages = staleness(events)
    return fmean(ages) if ages else None


def summary(events: Events) -> dict[str, Any] | None:
    """What `result.json` says about time; None where clients are neither simulated as slow nor asynchronous."""
    if not of_kind(events, "server_step"):
        return None
    work, ages = client_work(events), staleness(events)
    return {
        "seconds": total_time(events),
        "client_seconds": work,
        "lost_seconds": None if work is None else lost_work(events),
        "mean_staleness": mean_staleness(events),
        "max_staleness": max(ages, default=None),
    }
