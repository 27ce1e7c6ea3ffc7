"""What a reader of a result must know: warnings in plain words, derived from the events of a run and from nothing else.

A run that learned nothing has no forgetting either, so ACC and BWT alone can look harmless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedspecial.core.events import of_kind
from fedspecial.core.refusals import NO_SAMPLES, NOT_FINITE

Events = Sequence[dict[str, Any]]
Missed = dict[int, tuple[float, float]]

LEARNED = 0.05
"""A task counts as learned if its accuracy covers this share of the way from the most frequent class to 100 %.
With R² as the main metric, it counts as learned if R² is positive."""
DIVERGED = "the training diverged"
"""How the warning about a run that diverged begins."""


def warnings_of(events: Events) -> list[str]:
    """One sentence per finding; an empty list means that nothing stands out."""
    finished = of_kind(events, "task_finished")
    matrix = [row["accuracy"] for row in finished]
    columns = _columns(events)
    missed = _not_learned(events)
    diverged = _diverged(events, missed)
    found = [diverged] if diverged else []
    for task, (reached, trivial) in missed.items():
        compared = (
            f"R² {reached:.3g} after training on it, while always predicting the mean gives 0"
            if _main_metric(events) == "r2"
            else f"accuracy {_percent(reached)} after training on it, while always answering its most frequent class "
            f"gives {_percent(trivial)}"
        )
        found.append(f"task {task} ({finished[task - 1]['name']}) was not learned: {compared}")
    found += _strong_pull(events, missed)
    found += _backward_transfer(matrix, missed, columns)
    return found + _held_rounds(events) + _refused_updates(events) + _lost_updates(events)


def _not_learned(events: Events) -> Missed:
    """Task → the main metric right after it, and what a constant answer reaches, where that is no worse or close."""
    metric = _main_metric(events)
    if metric not in ("accuracy", "r2"):
        return {}
    shares = {event["task"]: event.get("majority") for event in of_kind(events, "task_started")}
    missed: Missed = {}
    columns = _columns(events)
    for event in of_kind(events, "task_finished"):
        reached, share = event["accuracy"][columns[event["task"]]], shares.get(event["task"])
        if metric == "r2":
            if reached is not None and reached <= 0:
                missed[event["task"]] = (reached, 0.0)
        elif reached is not None and share is not None and share < 1 and reached <= share + LEARNED * (1 - share):
            missed[event["task"]] = (reached, share)
    return missed


def _main_metric(events: Events) -> str:
    """What the matrix contains, by name."""
    started = of_kind(events, "run_started")
    return str(started[0].get("metric", {}).get("name", "accuracy")) if started else "accuracy"


def _diverged(events: Events, missed: Missed) -> str | None:
    """NaN or infinity in an update, or a loss that grew tenfold in a task that was not learned."""
    for event in of_kind(events, "update_refused"):
        if NOT_FINITE in event["reason"]:
            return (
                f"{DIVERGED}: from task {event['task']} on, clients sent values that are not finite; "
                "try a smaller client_lr"
            )
    for task in missed:
        losses = [r["loss"] for r in of_kind(events, "round") if r["task"] == task and r["loss"] is not None]
        if losses and losses[-1] > 10 * max(losses[0], 1e-9):
            return (
                f"{DIVERGED}: the loss of task {task} grew from {losses[0]:.3g} to {losses[-1]:.3g}; "
                "try a smaller client_lr or server_lr"
            )
    return None


def _strong_pull(events: Events, missed: Missed) -> list[str]:
    """A task that was not learned under a pull to the anchor, after earlier ones that were."""
    if 1 in missed:
        return []
    for task in missed:
        used = [r["lam"] for r in of_kind(events, "round") if r["task"] == task and r["lam"]]
        if used:
            return [
                f"λ = {max(used):g} may be too strong: task {task} was not learned, but task 1 was; try a smaller λ"
            ]
    return []


def _columns(events: Events) -> dict[int, int]:
    """Task → the column of its domain in the accuracy matrix; another one than its own where domains return."""
    started = of_kind(events, "run_started")
    visits = started[0].get("visits") if started else None
    tasks = [event["task"] for event in of_kind(events, "task_finished")]
    return {task: started[0]["tasks"].index(visits[task - 1]) if visits else task - 1 for task in tasks}


def _backward_transfer(
    matrix: Sequence[Sequence[float | None]], missed: Missed, columns: Mapping[int, int]
) -> list[str]:
    earlier = [task for task in missed if task < len(matrix)]
    if not earlier:
        return []
    names = f"task {earlier[0]} was" if len(earlier) == 1 else f"tasks {', '.join(map(str, earlier))} were"
    gained = sum((matrix[-1][columns[task]] or 0.0) - missed[task][0] for task in earlier)
    if gained > 0:
        return [f"BWT is higher than it should be: {names} learned only later, which counts as a gain"]
    return [f"BWT and worst drop say little: {names} not learned, so there was nothing to forget"]


def _held_rounds(events: Events) -> list[str]:
    rounds = of_kind(events, "round")
    held = sum(event["held"] for event in rounds)
    return [f"{held} of {len(rounds)} rounds had too few usable updates and left the model as it was"] if held else []


def _refused_updates(events: Events) -> list[str]:
    reasons = Counter(event["reason"] for event in of_kind(events, "update_refused") if event["reason"] != NO_SAMPLES)
    if not reasons:
        return []
    reason, count = reasons.most_common(1)[0]
    total = sum(reasons.values())
    return [f"{total} update{'s were' if total > 1 else ' was'} refused; the most frequent reason ({count}): {reason}"]


def _lost_updates(events: Events) -> list[str]:
    """Work of clients that was not used; over-selection loses some on purpose."""
    reasons = Counter(event["reason"] for event in of_kind(events, "update_lost") if event["reason"] != "not needed")
    if not reasons:
        return []
    shown = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    total = sum(reasons.values())
    return [f"the work of clients was lost {total} time{'s' if total > 1 else ''}: {shown}"]


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
