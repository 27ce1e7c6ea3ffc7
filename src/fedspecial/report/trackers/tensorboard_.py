"""TensorBoard: ``tensorboard --logdir runs`` shows the folder `tensorboard` of each run directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedspecial.report.trackers import TrackedRun


class TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


def start(run: TrackedRun) -> TensorBoard:
    """In a resumed run, TensorBoard hides the points after the round with which it continues."""
    from torch.utils.tensorboard import SummaryWriter

    folder = str(run.folder / "tensorboard")
    return TensorBoard(SummaryWriter(folder, purge_step=run.step + 1 if run.step else None))
