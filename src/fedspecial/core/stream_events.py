"""Events of streams whose tasks are detected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class TaskDetected:
    """The detectors of the clients raised the alarm after this round: another task begins, which is the number `begun`.

    task, round: where the stream is · at: the same round, counted over the whole run from 0
    share: of the clients of the last rounds, those whose alarm was up
    """

    event: ClassVar[str] = "task_detected"
    task: int
    round: int
    at: int
    begun: int
    share: float
