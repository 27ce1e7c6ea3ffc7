"""trackio: a run of the project "fedspecial"; ``trackio show`` opens its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedspecial.report.trackers import TrackedRun


class TrackioRun:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self) -> None:
        self._run.finish()


def start(run: TrackedRun) -> TrackioRun:
    """A resumed run continues under its name."""
    import trackio

    how = "allow" if run.step else "never"
    return TrackioRun(trackio.init(project="fedspecial", name=run.folder.name, config=dict(run.settings), resume=how))
