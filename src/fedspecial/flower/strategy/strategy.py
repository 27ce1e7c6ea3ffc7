"""SPECIAL around any Flower strategy: the server's anchor, after the inner strategy's average.

    θ̄ = θ + γ_G·(mean − θ)              (Algorithm 1, line 17; `mean` is the inner strategy's)
    θ' = (θ̄ + λ·θ_{i−1}) / (1 + λ)      (line 18; θ_{i−1} is the model that ended the previous task)

    strategy = SpecialStrategy(FedAvg(), lam=0.25, rounds_per_task=20)
    strategy.start(grid, initial_arrays, num_rounds=60)      # three tasks

Clients need not know: they return full weights, as ever, and find `task` and `task-round` (both from 1) in their
config. The blend is the last thing that happens, so clipping, noise and privacy accounts below it stay valid; Flower's
own wrappers go inside.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedspecial.errors import InputError
from fedspecial.flower.app.arrays import Values, is_finite, is_float, read, record_of, values_of
from fedspecial.flower.app.replies import Sifted, lasting_names, sift
from fedspecial.flower.governance.round_record import Site

log = logging.getLogger("fedspecial")


class RoundError(RuntimeError):
    """A round that cannot be completed: too few usable replies, or an average that is no model."""


class SpecialStrategy(Strategy):
    """Wrap `inner`; outermost, also around Flower's privacy and robust strategies.

    lam:             pull towards the previous task's model; 0 leaves the inner strategy as it is
    rounds_per_task: completed rounds after which a task ends; without it, call `begin_task`
    server_lr:       γ_G; 1 takes the inner average as it is
    quorum:          part of those asked whose replies must be usable, or the round raises `RoundError`
    checkpoint:      a file that `save` writes after every round
    """

    def __init__(
        self,
        inner: Strategy,
        lam: float = 0.25,
        *,
        rounds_per_task: int | None = None,
        server_lr: float = 1.0,
        quorum: float = 0.5,
        checkpoint: str | Path | None = None,
    ) -> None:
        for name, value in (("lam", lam), ("server_lr", server_lr)):
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name}={value}: must be a finite number, 0 or more")
        if not 0 < quorum <= 1:
            raise InputError(f"quorum={quorum}: must be above 0 and at most 1")
        if rounds_per_task is not None and rounds_per_task < 1:
            raise InputError(f"rounds_per_task={rounds_per_task}: must be at least 1")
        self.inner, self.lam, self.server_lr = inner, lam, server_lr
        self.rounds_per_task, self.quorum = rounds_per_task, quorum
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.task, self.rounds_done = 0, 0
        self.theta: Values = {}
        self.anchor: Values | None = None
        self.refusals: dict[Site, Counter[str]] = {}
        self._anchor_is_due = False
        self._asked: list[Message] = []
        self._names: dict[int, str] = {}

    def begin_task(self) -> None:
        """The next round is the first of a new task; the model it starts from is that task's anchor."""
        self.task, self.rounds_done = self.task + 1, 0
        self._anchor_is_due = self.task > 1

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self.task == 0 or self.rounds_done == self.rounds_per_task:
            self.begin_task()
        self.theta = values_of(arrays)
        if self._anchor_is_due:
            self.anchor, self._anchor_is_due = self.theta, False
        config["task"], config["task-round"] = self.task, self.rounds_done + 1
        self._asked = list(self.inner.configure_train(server_round, arrays, config, grid))
        self._names = lasting_names(grid)
        return self._asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        sifted = sift(replies, self._asked, self.theta, self._names, self._weight_key())
        self._report(sifted)
        if len(sifted.good) < self.quorum * len(self._asked):
            raise RoundError(
                f"{self._where()}: {len(sifted.good)} of {len(self._asked)} replies can be used, the quorum is "
                f"{self.quorum:g}; the model was not changed ({'; '.join(map(str, sifted.refused))})"
            )
        mean, metrics = self.inner.aggregate_train(server_round, [*sifted.good, *sifted.failed])
        if mean is None:
            log.warning("%s: the inner strategy gave no average; the model is held", self._where())
            return None, metrics
        self.theta = self._step(mean)
        self.rounds_done += 1
        if self.checkpoint is not None:
            self.save(self.checkpoint)
        return record_of(self.theta), metrics

    def _step(self, mean: ArrayRecord) -> Values:
        """θ' for every array; nothing is taken over unless all of it is sound."""
        if mean.keys() != self.theta.keys():
            odd = min(mean.keys() ^ self.theta.keys())
            raise RoundError(f"{self._where()}: '{odd}' is not both in the model and in the inner strategy's average")
        new = {name: self._blend(name, read(name, mean[name])) for name in self.theta}
        for name, value in new.items():
            if value.shape != self.theta[name].shape or not is_finite(value):
                raise RoundError(f"{self._where()}: the inner strategy's average of '{name}' is not a model's array")
        return new

    def _blend(self, name: str, mean: NDArray[Any]) -> NDArray[Any]:
        """Floats step and are anchored, in float64 and rounded once; counters are counters: rounded, not anchored."""
        theta = self.theta[name]
        if not is_float(theta):
            return np.asarray(np.rint(mean), dtype=theta.dtype)
        anchored = self.anchor is not None and self.lam > 0
        if self.server_lr == 1 and not anchored:
            return np.asarray(mean, dtype=theta.dtype)
        bar = theta + self.server_lr * (mean.astype(np.float64) - theta)
        if self.anchor is not None and anchored:
            bar = (bar + self.lam * self.anchor[name]) / (1 + self.lam)
        return np.asarray(bar, dtype=theta.dtype)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["task"] = self.task
        messages: Iterable[Message] = self.inner.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        rounds = f"{self.rounds_per_task} rounds a task" if self.rounds_per_task else "tasks begun by hand"
        log.info("SPECIAL: lam %g, server rate %g, %s, quorum %g", self.lam, self.server_lr, rounds, self.quorum)
        self.inner.summary()

    def save(self, path: str | Path) -> None:
        """Model, anchor, position and privacy account as one safetensors file, replaced in one step."""
        from fedspecial.flower.strategy.state import save

        save(self, Path(path))

    def load(self, path: str | Path) -> ArrayRecord:
        """Go on from `save`; returns the model for ``start``. The moments of an adaptive inner strategy start anew."""
        from fedspecial.flower.strategy.state import load

        load(self, Path(path))
        return record_of(self.theta)

    def _report(self, sifted: Sifted) -> None:
        for refusal in sifted.refused:
            self.refusals.setdefault(refusal.site, Counter())[refusal.reason] += 1
            log.warning("%s: %s", self._where(), refusal)

    def _where(self) -> str:
        return f"task {self.task}, round {self.rounds_done + 1}"

    def _weight_key(self) -> str:
        for strategy in chain(self.inner):
            if hasattr(strategy, "weighted_by_key"):
                return str(strategy.weighted_by_key)
        return "num-examples"


def chain(strategy: Strategy | None) -> Iterable[Strategy]:
    """A strategy and those it wraps, from the outside in."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None) or getattr(strategy, "inner", None)
