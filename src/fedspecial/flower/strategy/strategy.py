"""SPECIAL around any Flower strategy: the server's anchor is applied to the average of the inner strategy.

    θ̄ = θ + γ_G·(mean − θ)              (Algorithm 1, line 17; `mean` is the inner strategy's average)
    θ' = (θ̄ + λ·θ_{i−1}) / (1 + λ)      (line 18; θ_{i−1} is the model at the end of the previous task)

    strategy = SpecialStrategy(FedAvg(), lam=0.25, rounds_per_task=20)
    strategy.start(grid, initial_arrays, num_rounds=60)      # three tasks

Clients do not change: they return full weights, as with FedAvg. Their config contains `task` and `task-round`, both
counted from 1. The step is the last operation of a round, so clipping, noise and privacy accounting of the inner
strategies stay valid. Put Flower's own wrappers inside.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedspecial.core.messages import ServerState
from fedspecial.errors import InputError
from fedspecial.flower.arrays import (
    NamedArrays,
    arrays_to_record,
    is_finite,
    is_float,
    read_array,
    record_to_arrays,
)
from fedspecial.flower.governance.round_record import SiteName
from fedspecial.flower.logs import log_to_stderr
from fedspecial.flower.strategy.replies import CheckedReplies, check_replies, permanent_names
from fedspecial.methods.base import RoundInfo
from fedspecial.methods.special import Special

log = logging.getLogger("fedspecial.flower")


class RoundError(RuntimeError):
    """A round that cannot be completed: no quorum, or an invalid average."""


class SpecialStrategy(Strategy):
    """SPECIAL as a wrapper of `inner`. It must be outermost, also around Flower's privacy and robust strategies.

    lam:             weight λ of the previous task's model; 0 leaves the inner strategy unchanged
    rounds_per_task: number of completed rounds after which a task ends; if not given, call `begin_task`
    server_lr:       server learning rate γ_G; 1 takes the inner average as it is
    quorum:          fraction of the requested clients whose replies must be usable, else the round raises `RoundError`
    checkpoint:      file that `save` writes after every round
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
        self.theta: NamedArrays = {}
        self.anchor: NamedArrays | None = None
        self.refusals: dict[SiteName, Counter[str]] = {}
        self._method = Special(lam=lam)
        self._set_anchor_next_round = False
        self._requests: list[Message] = []
        self._names: dict[int, str] = {}

    def begin_task(self) -> None:
        """Start a new task with the next round; the model before that round becomes the task's anchor."""
        self.task, self.rounds_done = self.task + 1, 0
        self._set_anchor_next_round = self.task > 1

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._refuse_wrapper(sys._getframe(1).f_locals.get("self"))
        if self.task == 0 or self.rounds_done == self.rounds_per_task:
            self.begin_task()
        self.theta = record_to_arrays(arrays)
        if self._set_anchor_next_round:
            self.anchor, self._set_anchor_next_round = self.theta, False
        config["task"], config["task-round"] = self.task, self.rounds_done + 1
        self._requests = list(self.inner.configure_train(server_round, arrays, config, grid))
        self._names = permanent_names(grid)
        return self._requests

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        checked = check_replies(replies, self._requests, self.theta, self._names, self._weight_key())
        self._report(checked)
        if len(checked.usable) < self.quorum * len(self._requests):
            raise RoundError(
                f"{self._position()}: no quorum: {len(checked.usable)} of {len(self._requests)} replies are usable, "
                f"quorum={self.quorum:g}; the model is unchanged ({'; '.join(map(str, checked.refusals))})"
            )
        mean, metrics = self.inner.aggregate_train(server_round, [*checked.usable, *checked.failed])
        if mean is None:
            log.warning("%s: the inner strategy returned no average; the model is unchanged", self._position())
            return None, metrics
        self.theta = self._server_step(mean)
        self.rounds_done += 1
        if self.checkpoint is not None:
            self.save(self.checkpoint)
        return arrays_to_record(self.theta), metrics

    def _server_step(self, record: ArrayRecord) -> NamedArrays:
        """The next model: `Special.server_step` on all floating-point arrays as one float64 vector, rounded once.

        Integer arrays (counters) are rounded and not anchored.
        """
        if record.keys() != self.theta.keys():
            odd = min(record.keys() ^ self.theta.keys())
            raise RoundError(f"{self._position()}: '{odd}' is not in both the model and the inner strategy's average")
        mean = {name: read_array(name, record[name]) for name in self.theta}
        for name, value in mean.items():
            if value.shape != self.theta[name].shape or not is_finite(value):
                raise RoundError(f"{self._position()}: the inner strategy's average of '{name}' is not valid")
        floats = [name for name, value in self.theta.items() if is_float(value)]
        new = {
            name: np.asarray(mean[name] if name in floats else np.rint(mean[name]), dtype=value.dtype)
            for name, value in self.theta.items()
        }
        # θ + (mean − θ) may differ from the mean in the last bit, and λ = 0 must be the inner strategy exactly.
        if floats and not (self.server_lr == 1 and (self.anchor is None or self.lam == 0)):
            new |= self._anchored(mean, floats)
        for name, value in new.items():
            if not is_finite(value):
                raise RoundError(f"{self._position()}: the new '{name}' contains NaN or infinity")
        return new

    def _anchored(self, mean: NamedArrays, floats: list[str]) -> NamedArrays:
        anchor = None if self.anchor is None else _flatten(self.anchor, floats)
        server = ServerState(_flatten(self.theta, floats), anchor)
        # A Flower server does not know the clients' learning rate and steps; λ does not depend on them.
        info = RoundInfo(self.task, self.rounds_done, self.server_lr, client_lr=0.0, mean_steps=0.0)
        self._method.server_step(server, {"theta": _flatten(mean, floats) - server.theta}, info)
        parts = torch.split(server.theta, [self.theta[name].size for name in floats])
        return {
            name: part.numpy().reshape(self.theta[name].shape).astype(self.theta[name].dtype)
            for name, part in zip(floats, parts, strict=True)
        }

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["task"] = self.task
        messages: Iterable[Message] = self.inner.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def _refuse_wrapper(self, caller: object) -> None:
        """A strategy around this one would change the model after the server step, or add noise to it.

        Flower gives a strategy no other way to know that it is wrapped than who calls it.
        """
        if isinstance(caller, Strategy) and caller is not self:
            raise InputError(
                f"strategy={type(caller).__name__}: SpecialStrategy must be outermost; write "
                f"SpecialStrategy({type(caller).__name__}(…)), not {type(caller).__name__}(SpecialStrategy(…))"
            )

    def summary(self) -> None:
        log_to_stderr()
        self._refuse_wrapper(sys._getframe(1).f_locals.get("self"))
        rounds = f"rounds_per_task={self.rounds_per_task}" if self.rounds_per_task else "tasks started by begin_task()"
        log.info("SPECIAL: lam=%g, server_lr=%g, %s, quorum=%g", self.lam, self.server_lr, rounds, self.quorum)
        self.inner.summary()

    def save(self, path: str | Path) -> None:
        """Write model, anchor, position and privacy accountant to one safetensors file, atomically."""
        from fedspecial.flower.strategy.state import save

        save(self, Path(path))

    def load(self, path: str | Path) -> ArrayRecord:
        """Continue from a file of `save`; returns the model for ``start``.

        The optimizer state of an adaptive inner strategy (such as FedAdam) is not saved and starts again.
        """
        from fedspecial.flower.strategy.state import load

        load(self, Path(path))
        return arrays_to_record(self.theta)

    def _report(self, checked: CheckedReplies) -> None:
        for refusal in checked.refusals:
            self.refusals.setdefault(refusal.site, Counter())[refusal.reason] += 1
            log.warning("%s: %s", self._position(), refusal)

    def _position(self) -> str:
        return f"task {self.task}, round {self.rounds_done + 1}"

    def _weight_key(self) -> str:
        for strategy in wrapped_strategies(self.inner):
            if hasattr(strategy, "weighted_by_key"):
                return str(strategy.weighted_by_key)
        return "num-examples"


def wrapped_strategies(strategy: Strategy | None) -> Iterable[Strategy]:
    """A strategy and the ones it wraps, from the outside in."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None) or getattr(strategy, "inner", None)


def _flatten(arrays: NamedArrays, names: list[str]) -> Tensor:
    return torch.from_numpy(np.concatenate([arrays[name].astype(np.float64).ravel() for name in names]))
