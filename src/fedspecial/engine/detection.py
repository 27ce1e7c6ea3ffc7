"""New tasks that nobody announces: the federation finds them from one number per client and round.

The number is the loss ℓ of a client's first batch under the downloaded model, before it trains: the first local step
computes it anyway. Each client has a detector of its own. `detect=loss` is a CUSUM of standardised losses,

    S ← max(0, S + (ℓ − m)/s − 0.5),        the client's alarm is up while S ≥ `detect_threshold`

m: exponentially weighted mean of the client's earlier losses in this task · s² = twice the weighted mean of
max(0, ℓ − m)²: a loss falls because the model learns, so only rises are noise, and noise rises half of the time. s is
at least `FLOOR` times the client's first loss in the task. A new task begins when the alarm was up at half or more of
the clients that took part in the last `RECENT` rounds, but not within `detect_pause` rounds of the last beginning. All
detectors then start again. A detector is a function of the losses of its client since the task began, so that a
resumed run needs nothing else.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedspecial.config import Config
from fedspecial.core.messages import ServerState

FIRST_LOSS = "first_loss"
"""The name of the loss of the first batch among the numbers of an update."""
ALARM_SHARE = "alarm_share"
"""The name of the share of raised alarms among the metrics of a round."""
RECENT = 3
"""Rounds whose participants decide."""
HISTORY = 200
"""Losses of a client that are kept."""
WARM_UP = 3
"""Losses that a client needs before its alarm can rise."""
WEIGHT = 0.3
"""Weight of the newest loss in the weighted means, which so follow a loss that falls as the model learns."""
FLOOR = 0.05
"""Smallest deviation, as a share of the first loss: while the loss only falls, nothing is known about its noise."""

Detect = Callable[[Sequence[float], float], list[bool]]
"""(losses of a client in order, threshold) → at which of them its alarm is up."""


def cusum(losses: Sequence[float], threshold: float) -> list[bool]:
    """S ← max(0, S + (ℓ − m)/s − 0.5); up while S ≥ threshold."""
    mean, rises, total, up = losses[0], 0.0, 0.0, []
    for number, loss in enumerate(losses):
        rise = loss - mean
        if number >= WARM_UP:
            deviation = max(math.sqrt(2 * rises), FLOOR * abs(losses[0]), 1e-6)
            total = max(0.0, total + rise / deviation - 0.5)
        up.append(total >= threshold)
        mean += WEIGHT * rise
        rises += WEIGHT * (max(0.0, rise) ** 2 - rises)
    return up


def adwin(losses: Sequence[float], threshold: float) -> list[bool]:
    """ADWIN of river, which compares all ways to cut the losses in two; only a rise counts. threshold: its δ."""
    detector, up = _river().ADWIN(delta=threshold, clock=1, min_window_length=2, grace_period=WARM_UP), []
    for loss in losses:
        before = detector.estimation
        detector.update(loss)
        up.append(bool(detector.drift_detected) and detector.estimation > before)
    return up


def page_hinkley(losses: Sequence[float], threshold: float) -> list[bool]:
    """The Page-Hinkley test of river for a rise of the mean. threshold: its λ, in units of the loss."""
    detector, up = _river().PageHinkley(min_instances=WARM_UP, threshold=threshold, mode="up"), []
    for loss in losses:
        detector.update(loss)
        up.append(bool(detector.drift_detected))
    return up


def _river() -> Any:
    return importlib.import_module("river.drift")


DETECTORS: dict[str, tuple[Detect, float]] = {
    "loss": (cusum, 5.0),
    "adwin": (adwin, 0.002),
    "page-hinkley": (page_hinkley, 0.5),
}
"""Name → detector and its default threshold."""


def observe(server: ServerState, time: int, losses: Mapping[int, float]) -> None:
    """Note the first losses of a round of the stream, by client."""
    for client, loss in losses.items():
        if math.isfinite(loss):
            history = server.first_losses.setdefault(str(client), [])
            history += [float(time), loss]
            del history[: -2 * HISTORY]


def alarm_share(server: ServerState, config: Config, time: int) -> float:
    """The share of the clients of the last rounds whose alarm was up in them."""
    detect, default = DETECTORS[config.detect]
    recent = raised = 0
    for history in server.first_losses.values():
        times, losses = history[0::2], history[1::2]
        if times[-1] > time - RECENT:
            up = detect(losses, config.detect_threshold or default)
            recent += 1
            raised += any(alarm for at, alarm in zip(times, up, strict=True) if at > time - RECENT)
    return raised / recent if recent else 0.0


def begins_task(server: ServerState, config: Config, time: int, share: float) -> bool:
    """Whether a new task begins after this round."""
    return share >= 0.5 and time + 1 - server.task_began > config.detect_pause


def begin_task(server: ServerState, time: int) -> None:
    """A new task begins with this round of the stream; all detectors start again."""
    server.tasks_begun += 1
    server.task_began = time
    server.first_losses = {}
