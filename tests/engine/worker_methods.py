"""Methods that misbehave on purpose; worker processes import them from here."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from pydantic.dataclasses import dataclass
from torch import Tensor

from fedspecial.methods.base import ClientContext, Method


@dataclass(frozen=True)
class Misbehaving(Method):
    """FedAvg, but client 2 misbehaves in the second round of the first task, at its second batch.

    how:   "kill" ends the process with SIGKILL, "memory" runs out of memory, "error" raises an exception,
           "wait" hangs after it has written the ID of its Ray node to its file
    times: so often; every occurrence leaves a file in `folder`
    """

    how: str = "kill"
    times: int = 1
    folder: str = ""

    def loss(self, context: ClientContext, x: Tensor, y: Tensor) -> Tensor:
        message = context.broadcast
        if (context.client, message.task, message.round, context.batch) == (2, 1, 1, 2):
            count = len(list(Path(self.folder).iterdir()))
            if count < self.times:
                self._misbehave(Path(self.folder) / str(count))
        return super().loss(context, x, y)

    def _misbehave(self, occurrence: Path) -> None:
        occurrence.touch()
        if self.how == "wait":
            import ray

            occurrence.write_text(ray.get_runtime_context().get_node_id())
            time.sleep(120)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError if self.how == "memory" else KeyError("label")
