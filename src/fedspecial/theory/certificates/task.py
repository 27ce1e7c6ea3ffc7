"""The certificate of a task: the measured distance to the anchor in each round, and the bounds on it.

`DriftMonitor` computes it from arrays while a run is in progress. `certify` computes it from the event log of a
run. Both use the same bounds (``certificates/round.py``). The drift includes weights only: BatchNorm running
statistics are not covered by the theory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedspecial.core.anchored import AnchoredPart
from fedspecial.core.events import Estimate
from fedspecial.theory import validation
from fedspecial.theory.arrays import flat, flat_norm
from fedspecial.theory.certificates.asynchronous import AsynchronousCertificate
from fedspecial.theory.certificates.round import (
    RTOL,
    Assumptions,
    BoundTracker,
    RoundCertificate,
    RoundNorms,
    Violation,
)
from fedspecial.theory.constants import Constants, RoundConfig

SCOPE = "weights only; BatchNorm running statistics are excluded"


@dataclass(frozen=True)
class TaskCertificate:
    """The certificates of a task's rounds and their summary.

    ``constants`` are the run's own estimates, ``asynchronous`` is about stale and lost updates.
    """

    task: int
    anchored: bool
    rounds: tuple[RoundCertificate, ...]
    scope: str = SCOPE
    constants: Mapping[str, Estimate] = field(default_factory=dict)
    asynchronous: AsynchronousCertificate | None = None

    @property
    def violations(self) -> tuple[Violation, ...]:
        """All violated inequalities, in order."""
        of_steps = self.asynchronous.violated if self.asynchronous else ()
        return (*(violation for entry in self.rounds for violation in entry.violated), *of_steps)

    @property
    def status(self) -> str:
        """One of "holds", "bug in the run", "wrong constant", "not anchored" and "not measured"."""
        kinds = {violation.kind for violation in self.violations}
        if "bug" in kinds:
            return "bug in the run"
        if "constant" in kinds:
            return "wrong constant"
        if not self.anchored:
            return "not anchored"
        return "holds" if any(entry.drift is not None for entry in self.rounds) else "not measured"

    @property
    def max_drift(self) -> float | None:
        """The largest distance to the anchor."""
        return max((entry.drift for entry in self.rounds if entry.drift is not None), default=None)

    @property
    def max_ratio(self) -> float | None:
        """The largest drift / recursion bound."""
        return max((entry.ratio for entry in self.rounds if entry.ratio is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON: the summary, then the rounds."""
        return {**self.summary(), "rounds": [entry.to_dict() for entry in self.rounds]}

    def summary(self) -> dict[str, Any]:
        """Plain JSON without the rounds."""
        last = self.rounds[-1]
        last_anchored = next((entry for entry in reversed(self.rounds) if entry.lam is not None), last)
        caps = (entry.forgetting_cap for entry in self.rounds if entry.forgetting_cap is not None)
        return {
            "task": self.task,
            "anchored": self.anchored,
            "status": self.status,
            "num_rounds": len(self.rounds),
            "drift": validation.finite_or_none(last.drift),
            "max_drift": validation.finite_or_none(self.max_drift),
            "recursion_bound": validation.finite_or_none(last.recursion_bound),
            "delta_cap": validation.finite_or_none(last.delta_cap),
            "uniform_bound": validation.finite_or_none(last.uniform_bound),
            "max_ratio": validation.finite_or_none(self.max_ratio),
            "lam": last_anchored.lam,
            "mu": validation.finite_or_none(last_anchored.mu),
            "forgetting_cap": max(caps, default=None),
            "violated": [violation.to_dict() for violation in self.violations],
            "constants": {name: asdict(estimate) for name, estimate in self.constants.items()},
            "scope": self.scope,
            **({"asynchronous": self.asynchronous.summary()} if self.asynchronous else {}),
            **({"anchored_part": last.anchored.to_dict()} if last.anchored else {}),
        }

    def to_jsonl(self) -> str:
        """One line per round, then one for the task."""
        lines = [{"kind": "round", **entry.to_dict()} for entry in self.rounds]
        return "\n".join(json.dumps(line) for line in [*lines, {"kind": "task", **self.summary()}])

    def table(self) -> str:
        """A plain table: one row per round."""
        heads = ("round", "drift", "recursion", "max-delta", "delta cap", "uniform", "mu", "violated")
        rows = [heads, *(_cells(entry) for entry in self.rounds)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([f"task {self.task}: {self.status} ({self.scope})", *lines])


class DriftMonitor:
    """Builds the certificate of one task while it runs.

    Pass the anchor once, then theta and the norm of the mean delta after every round.

    >>> cfg = RoundConfig(8, 4, 5, 20, 2, server_lr=0.5, client_lr=0.01, lam=1.0)
    >>> monitor = DriftMonitor([0.0, 0.0], cfg, grad_bound=1.0)
    >>> monitor.observe([0.005, 0.0], delta_norm=0.02).ratio
    1.0
    """

    def __init__(
        self,
        anchor: Any,
        cfg: RoundConfig,
        *,
        grad_bound: float | None = None,
        delta_clip: float | None = None,
        consts: Constants | None = None,
        rtol: float = RTOL,
    ) -> None:
        self._anchor = flat(anchor)
        self._cfg = cfg
        self._tracker = BoundTracker(cfg.task_index, _assumptions(grad_bound, delta_clip, consts, rtol))
        self._rounds: list[RoundCertificate] = []

    def observe(
        self,
        theta: Any,
        delta_norm: float,
        *,
        server_lr: float | None = None,
        lam: float | None = None,
        max_client_delta: float | None = None,
        max_grad: float | None = None,
    ) -> RoundCertificate:
        """The certificate of the round that ended in ``theta``.

        Pass ``server_lr`` and ``lam`` if they change from round to round.
        """
        cfg, point = self._cfg, flat(theta)
        if point.shape != self._anchor.shape:
            raise ValueError(f"theta must have the anchor's {self._anchor.size} entries, got {point.size}")
        step = cfg.server_lr if server_lr is None else validation.positive("server_lr", server_lr)
        strength = cfg.effective_lam if lam is None else validation.nonnegative("lam", lam)
        norms = RoundNorms(
            drift=flat_norm(point - self._anchor),
            delta_norm=float(delta_norm),
            server_lr=step,
            lam=strength,
            pseudo_step=step * cfg.client_lr * cfg.local_steps,
            max_client_delta=max_client_delta,
            max_grad=max_grad,
            theta_norm=None if getattr(theta, "dtype", None) == "float64" else flat_norm(point),
        )
        self._rounds.append(self._tracker.observe(len(self._rounds), norms))
        return self._rounds[-1]

    def summary(self) -> TaskCertificate:
        """The task so far."""
        if not self._rounds:
            raise ValueError("call observe before summary, got 0 rounds")
        return TaskCertificate(self._cfg.task_index, self._cfg.anchored, tuple(self._rounds))


def certify(
    events: Iterable[Mapping[str, Any]],
    *,
    grad_bound: float | None = None,
    delta_clip: float | None = None,
    consts: Constants | None = None,
    rtol: float = RTOL,
) -> list[TaskCertificate]:
    """One certificate per task, from the events of a run. Only events with ``event == "round"`` are used.

    ``drift`` and ``delta_norm`` must include weights only. If ``lam`` is null, the task has no server-side
    anchor: the recursion is then the sum of the deltas, and the certificate claims nothing. ``mean_steps`` is
    used as E, which is correct for the mean delta if all clients have the same weight. Where ``plain_sgd`` is
    false (momentum, weight decay, Adam, a server optimizer, clients weighted by samples) the inequalities with B are
    omitted. The optional fields ``max_grad`` (largest gradient norm), ``theta_norm`` (allows for float32 rounding)
    and ``step_norm`` (what a server optimizer made of the mean delta) are used if present.
    """
    assumptions = _assumptions(grad_bound, delta_clip, consts, rtol)
    trackers: dict[int, BoundTracker] = {}
    rounds: dict[int, list[RoundCertificate]] = {}
    for event in events:
        if event.get("event") != "round":
            continue
        task = validation.count("task", _field(event, "task"))
        tracker = trackers.setdefault(task, BoundTracker(task, assumptions))
        rounds.setdefault(task, []).append(
            tracker.observe(validation.count("round", _field(event, "round"), low=0), _observed(event))
        )
    return [
        TaskCertificate(task, any(entry.lam is not None for entry in entries), tuple(entries))
        for task, entries in sorted(rounds.items())
    ]


def _observed(event: Mapping[str, Any]) -> RoundNorms:
    server_lr = validation.nonnegative("server_lr", _field(event, "server_lr"))
    client_lr, steps = event.get("client_lr"), event.get("mean_steps")
    delta = event.get("delta_norm")
    held = bool(event.get("held")) or event.get("num_accepted") == 0
    if delta is None and not held:
        raise ValueError(f"delta_norm is required in every round event, got {delta!r} in {_location(event)}")
    known = client_lr is not None and steps is not None and event.get("plain_sgd", True)
    return RoundNorms(
        drift=_number(event, "drift"),
        delta_norm=0.0 if delta is None else float(delta),
        server_lr=server_lr,
        lam=_number(event, "lam"),
        pseudo_step=server_lr * float(client_lr) * float(steps) if known else None,  # type: ignore[arg-type]
        max_client_delta=_number(event, "max_client_delta"),
        max_grad=_number(event, "max_grad"),
        mu=_number(event, "mu"),
        theta_norm=_number(event, "theta_norm"),
        held=held,
        step_norm=_number(event, "step_norm"),
        anchored=None if event.get("anchored") is None else AnchoredPart(**event["anchored"]),
    )


def _number(event: Mapping[str, Any], name: str) -> float | None:
    return None if event.get(name) is None else float(event[name])


def _field(event: Mapping[str, Any], name: str) -> Any:
    if event.get(name) is None:
        raise ValueError(f"{name} is required in every round event, got {event.get(name)!r} in {_location(event)}")
    return event[name]


def _location(event: Mapping[str, Any]) -> str:
    return f"task {event.get('task')}, round {event.get('round')}"


def _assumptions(
    grad_bound: float | None, delta_clip: float | None, consts: Constants | None, rtol: float
) -> Assumptions:
    if grad_bound is None and consts is not None:
        grad_bound = consts.grad_bound
    return Assumptions(
        None if grad_bound is None else validation.positive("grad_bound", grad_bound),
        None if delta_clip is None else validation.positive("delta_clip", delta_clip),
        consts,
        validation.nonnegative("rtol", rtol),
    )


def _cells(entry: RoundCertificate) -> tuple[str, ...]:
    caps = (
        entry.drift,
        entry.recursion_bound,
        entry.delta_bound,
        entry.delta_cap,
        entry.uniform_bound,
        entry.mu,
    )
    numbers = ["-" if value is None or not math.isfinite(value) else f"{value:.4g}" for value in caps]
    return (str(entry.round), *numbers, ", ".join(violation.inequality for violation in entry.violated) or "none")
