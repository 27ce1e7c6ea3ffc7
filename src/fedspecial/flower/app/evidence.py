"""What the audit log says of a round, gathered as it goes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from fedspecial.engine.aggregate import norm
from fedspecial.flower.app.arrays import Values
from fedspecial.flower.governance.round_record import Answer, Refusal


@dataclass
class Evidence:
    """asked and answers of the round under way, refusals since the last one was written down; `head`: the last seal of
    the audit log."""

    asked: list[str] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    head: str = ""

    def begin(self, asked: list[str]) -> None:
        self.asked, self.answers = asked, {}

    def answer(self, site: str, size: int, values: Values, delta: Tensor) -> None:
        sha = hashlib.sha256()
        for name in sorted(values):
            sha.update(name.encode())
            sha.update(np.ascontiguousarray(values[name]).data)
        self.answers[site] = Answer(site, size, sha.hexdigest(), norm(delta))

    def refuse(self, site: str, reason: str) -> None:
        """Something of a site that was not used; it may answer well when it is asked again."""
        self.refusals.append(Refusal(site, reason))

    def withdraw(self, site: str, reason: str) -> None:
        """An answer that looked sound to the engine and is not averaged after all."""
        if self.answers.pop(site, None) is not None:
            self.refuse(site, reason)
