"""What the audit log says of a round, gathered as it goes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from torch import Tensor

from fedspecial.core.messages import Tensors
from fedspecial.core.vector import raw_bytes
from fedspecial.deploy.records import Answer, Refusal
from fedspecial.engine.aggregate import norm


@dataclass
class Evidence:
    """asked, answers and refusals of the round under way; `head`: the last seal of the audit log."""

    asked: list[str] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    head: str = ""

    def begin(self, asked: list[str]) -> None:
        self.asked, self.answers, self.refusals = asked, {}, []

    def answer(self, site: str, size: int, vectors: Tensors, delta: Tensor) -> None:
        sha = hashlib.sha256()
        for name in sorted(vectors):
            sha.update(name.encode())
            sha.update(raw_bytes(vectors[name]))
        self.answers[site] = Answer(site, size, sha.hexdigest(), norm(delta))

    def refuse(self, site: str, reason: str) -> None:
        """A site's answer that cannot be used, though it may have looked so at first."""
        self.answers.pop(site, None)
        self.refusals.append(Refusal(site, reason))

    def stray(self, site: str, reason: str) -> None:
        """An answer beside the one that counts."""
        self.refusals.append(Refusal(site, reason))
