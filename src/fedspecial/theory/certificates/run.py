"""Certificates of all tasks of a run, computed from its events and the constants it estimated (``estimate: true``).

The bounds of a task use what was observed up to its end: the largest gradient (B) and curvature (L) of all tasks so
far, and G from the gradient norms measured at the end of each earlier task. None of these is a proven bound, so a
violated inequality that uses one is reported as a wrong constant. Without estimates, only the bounds that need no
assumption are computed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedspecial.core.events import Estimate
from fedspecial.theory.bounds.forgetting import old_grad_norm_upper
from fedspecial.theory.certificates.asynchronous import certify_steps
from fedspecial.theory.certificates.task import TaskCertificate, certify
from fedspecial.theory.constants import Constants

Events = Sequence[Mapping[str, Any]]


def certify_run(events: Events) -> list[TaskCertificate]:
    """The certificate of each task with at least one round."""
    events = rounds_by_task(events)
    tasks = {event["task"] for event in events if event.get("event") == "round"}
    return [certify_task(events, task) for task in sorted(tasks)]


def certify_task(events: Events, task: int) -> TaskCertificate:
    """The certificate of one task with at least one round."""
    events = rounds_by_task(events)
    known = estimated_constants(events, task)
    rounds = [event for event in events if event.get("event") == "round" and event.get("task") == task]
    (certificate,) = certify(rounds, consts=_usable(known))
    here = [event for event in events if event.get("task") == task]
    steps = [event for event in here if event.get("event") == "server_step"]
    lost = sum(event.get("event") == "update_lost" for event in here)
    return replace(certificate, constants=known, asynchronous=certify_steps(rounds, steps, lost))


def rounds_by_task(events: Events) -> Events:
    """Where tasks are detected, a round belongs to the task that had begun, and not to the domain of the stream."""
    counts: Counter[int] = Counter()
    found: list[Mapping[str, Any]] = []
    for event in events:
        if event.get("event") == "round" and event.get("begun") is not None:
            task = event["begun"]
            found.append({**event, "task": task, "round": counts[task], "begun": None})
            counts[task] += 1
        else:
            found.append(event)
    return found


def estimated_constants(events: Events, task: int) -> dict[str, Estimate]:
    """The estimates available when the task ended; constants that were not estimated are omitted."""
    past = [event for event in events if event.get("task", task + 1) <= task]
    rounds = [event for event in past if event["event"] == "round"]
    estimates = [event for event in past if event["event"] == "estimates"]
    here = [event for event in estimates if event["task"] == task]
    found: dict[str, Estimate] = {}
    gradients = [event["max_grad"] for event in rounds if event.get("max_grad") is not None]
    if gradients:
        note = "largest stochastic gradient of any local step so far"
        found["grad_bound"] = Estimate(max(gradients), "lower", len(gradients), note)
    curvatures = _values(estimates, "smoothness")
    if curvatures:
        note = "largest of power iterations and secants so far, each on one batch"
        found["smoothness"] = Estimate(max(curvatures), "plugin", len(curvatures), note)
    for name in ("sigma_local", "sigma_client"):
        if values := _values(here, name):
            square = sum(value**2 for value in values) / len(values)
            found[name] = Estimate(math.sqrt(square), "plugin", len(values), "root mean square over the task's rounds")
    if cosines := _values(here, "alignment"):
        note = "smallest cosine in this task with the gradient at the end of the previous task"
        found["alignment"] = Estimate(min(cosines), "upper", len(cosines), note)
    return found | _old_gradient(rounds, estimates, task, found.get("smoothness"))


def _old_gradient(rounds: Events, estimates: Events, task: int, smoothness: Estimate | None) -> dict[str, Estimate]:
    """G by `old_grad_norm_upper`, from the gradient norm at the end of each earlier task and the drift since then."""
    ends = {event["task"]: _values([event], "end_grad_norm") for event in estimates if event["round"] is None}
    drifts = {event["task"]: event["drift"] for event in rounds if event.get("drift") is not None}
    norms = [ends[old][0] for old in range(1, task) if ends.get(old)]
    radii = [0.0] + [float(drifts[old]) for old in range(2, task) if old in drifts]
    if task < 2 or smoothness is None or smoothness.value <= 0 or not len(norms) == len(radii) == task - 1:
        return {}
    value = old_grad_norm_upper(norms, radii, smoothness.value)
    note = "from the gradient norms at the end of each earlier task and the estimated smoothness"
    return {"old_grad_norm": Estimate(value, "plugin", len(norms), note)}


def _values(estimates: Events, name: str) -> list[float]:
    return [float(event["estimates"][name]["value"]) for event in estimates if name in event["estimates"]]


def _usable(known: Mapping[str, Estimate]) -> Constants | None:
    needed = ("grad_bound", "smoothness")
    if any(name not in known or known[name].value <= 0 for name in needed):
        return None
    return Constants(**{name: estimate.value for name, estimate in known.items()})
