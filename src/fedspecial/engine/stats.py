"""Sums and maxima over the replies of one round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fedspecial.core.messages import Update
from fedspecial.engine.aggregation.mean import first_norm, refusal
from fedspecial.engine.base import Reply
from fedspecial.engine.detection import FIRST_LOSS


@dataclass
class RoundStats:
    """Statistics of one round.

    num_weights: the length of the part of a vector that is weights and not BatchNorm statistics
    quorum:      with fewer accepted updates, the model is held: the round does not change it
    first_losses: client → loss of its first batch, where tasks are detected
    """

    num_weights: int
    quorum: int = 1
    accepted: int = 0
    steps: int = 0
    samples: int = 0
    loss: float = 0.0
    delta_norm: float = 0.0
    largest: float | None = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_once: int = 0
    memory: int = 0
    paper_memory: int = 0
    max_grad: float | None = None
    step_norm: float | None = None
    first_losses: dict[int, float] = field(default_factory=dict)

    def count(self, reply: Reply) -> str | None:
        """Add what a reply cost; returns why its update cannot be used, or None."""
        self.bytes_up += reply.bytes_up
        self.bytes_down += reply.bytes_down
        self.bytes_once += reply.bytes_once
        self.memory = max(self.memory, reply.memory)
        self.paper_memory = max(self.paper_memory, reply.paper_memory)
        if reply.update is None:
            return reply.problem
        problem = refusal(reply.update.deltas, reply.sent)
        if problem is None and not math.isfinite(reply.update.loss):
            problem = f"its loss is {reply.update.loss}"
        return problem

    def accept(self, update: Update) -> None:
        """Add an update that is used."""
        self.accepted += 1
        self.steps += update.steps
        self.samples += update.samples
        self.loss += update.loss
        self.largest = max(self.largest or 0.0, first_norm(update.deltas, self.num_weights))
        if math.isfinite(seen := update.numbers.get("max_grad", math.nan)):
            self.max_grad = max(self.max_grad or 0.0, seen)
        if FIRST_LOSS in update.numbers:
            self.first_losses[update.client] = update.numbers[FIRST_LOSS]

    @property
    def held(self) -> bool:
        return self.accepted < self.quorum

    @property
    def mean_steps(self) -> float:
        return self.steps / self.accepted if self.accepted else 0.0

    def fields(self) -> dict[str, Any]:
        return {
            "num_accepted": self.accepted,
            "held": self.held,
            "mean_steps": self.mean_steps,
            "samples": self.samples,
            "loss": self.loss / self.accepted if self.accepted else None,
            "delta_norm": self.delta_norm,
            "max_client_delta": self.largest,
            "max_grad": self.max_grad,
            "step_norm": self.step_norm,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "bytes_once": self.bytes_once,
            "client_memory_bytes": self.memory,
            "client_memory_paper_bytes": self.paper_memory,
        }
