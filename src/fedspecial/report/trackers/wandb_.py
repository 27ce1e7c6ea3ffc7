"""Weights & Biases: a run of the project "fedspecial", with the variables WANDB_… of your environment.

WANDB_MODE=offline keeps everything in the run directory, for ``wandb sync`` later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from fedspecial.report.trackers import TrackedRun


class WandbRun:
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        # The step of W&B itself must grow with every call, and a task ends at the step of its last round.
        self._run.log({"round": step, **values})

    def finish(self) -> None:
        self._run.finish()


def start(run: TrackedRun) -> WandbRun:
    """The id follows from the run directory, so that a resumed run continues its W&B run."""
    import wandb

    name = hashlib.sha256(str(run.folder.resolve()).encode()).hexdigest()[:12]
    opened = wandb.init(
        project="fedspecial", name=run.folder.name, id=name, resume="allow", dir=run.folder, config=dict(run.settings)
    )
    opened.define_metric("*", step_metric="round")
    return WandbRun(opened)
