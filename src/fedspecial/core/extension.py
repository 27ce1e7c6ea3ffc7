"""A finished run that goes on with further domains: the event of it, and the tasks of a run as its events tell them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class RunExtended:
    """A run goes on with the domains `tasks`; `task` is the number of the first of them.

    model_sha256: the model from which it goes on · data_sha256: of each new domain · versions: of the software by now
    """

    event: ClassVar[str] = "run_extended"
    task: int
    tasks: list[str]
    model_sha256: str
    data_sha256: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def task_names(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """The tasks of a run in order: those with which it started, and those by which it was extended."""
    kinds = ("run_started", RunExtended.event)
    return [str(name) for event in events if event["event"] in kinds for name in event["tasks"]]
