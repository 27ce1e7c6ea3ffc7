"""The costs of a run, computed from its events."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

Events = Sequence[dict[str, Any]]


def rounds_to_best(rounds: Events, tasks: Sequence[str]) -> int | None:
    """Σ_i (1 + argmax_t accuracy on domain i after round t of task i), over the rounds that were evaluated."""
    total = 0
    for task, name in enumerate(tasks, start=1):
        curve = [(r["accuracy"][name], r["round"]) for r in rounds if r["task"] == task and name in r["accuracy"]]
        if not curve:
            return None
        best = max(accuracy for accuracy, _ in curve)
        total += 1 + min(number for accuracy, number in curve if accuracy == best)
    return total


def seconds_per_round(rounds: Events) -> float:
    """Training and server step, without evaluation and checkpoints."""
    return fmean(r["seconds"] for r in rounds)


def bytes_per_client(rounds: Events, direction: str) -> float:
    """Mean bytes per chosen client and round, as serialised; `direction` is "up" or "down". What is sent once a task
    is left out."""
    total: int = sum(r[f"bytes_{direction}"] for r in rounds)
    if direction == "down":
        total -= sum(r["bytes_once"] for r in rounds)
    return total / max(1, sum(len(r["clients"]) for r in rounds))


def bytes_once(rounds: Events, queries: Events, clients: int, tasks: int) -> float:
    """Mean bytes per client and task, up and down, that are not sent every round: payloads and queries."""
    total: int = sum(r["bytes_once"] for r in rounds) + sum(q["bytes_up"] + q["bytes_down"] for q in queries)
    return total / (clients * tasks)


def seconds_between_tasks(boundaries: Events, tasks: int) -> float:
    """Mean per task of what a method does when tasks begin and end."""
    total: float = sum(b["seconds"] for b in boundaries)
    return total / tasks


def largest(rounds: Events, field: str) -> int:
    """The largest value of a field, such as the memory of a client."""
    return int(max(r[field] for r in rounds))
