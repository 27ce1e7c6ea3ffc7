"""Certificates: what a run's distance to its anchor was, and what it could not have exceeded.

`DriftMonitor` watches a run through its arrays; `certify` reads the events a run left behind. Both put the
same norms through the same chain (``chain``). Drift counts weights only: BatchNorm running statistics are
averaged by the server as the run's buffer policy says and are outside the theory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedspecial.core.events import Estimate
from fedspecial.theory import _validate as check
from fedspecial.theory.arrays import flat, flat_norm
from fedspecial.theory.chain import Assumed, Chain, Observed, RoundCertificate, Violation
from fedspecial.theory.constants import Constants, RoundConfig

SCOPE = "weights only; BatchNorm running statistics are excluded"


@dataclass(frozen=True)
class TaskCertificate:
    """The rounds of one task and what they add up to; ``constants`` are those the run itself estimated."""

    task: int
    anchored: bool
    rounds: tuple[RoundCertificate, ...]
    scope: str = SCOPE
    constants: Mapping[str, Estimate] = field(default_factory=dict)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Every broken link, in order."""
        return tuple(violation for entry in self.rounds for violation in entry.violated)

    @property
    def status(self) -> str:
        """ "holds", "bug in the run", "wrong constant", "not anchored" or "not measured"."""
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
        pulled = next((entry for entry in reversed(self.rounds) if entry.lam is not None), last)
        caps = (entry.forgetting_cap for entry in self.rounds if entry.forgetting_cap is not None)
        return {
            "task": self.task,
            "anchored": self.anchored,
            "status": self.status,
            "num_rounds": len(self.rounds),
            "drift": check.plain(last.drift),
            "max_drift": check.plain(self.max_drift),
            "recursion_bound": check.plain(last.recursion_bound),
            "delta_cap": check.plain(last.delta_cap),
            "uniform_bound": check.plain(last.uniform_bound),
            "max_ratio": check.plain(self.max_ratio),
            "lam": pulled.lam,
            "mu": check.plain(pulled.mu),
            "forgetting_cap": max(caps, default=None),
            "violated": [violation.to_dict() for violation in self.violations],
            "constants": {name: asdict(estimate) for name, estimate in self.constants.items()},
            "scope": self.scope,
        }

    def to_jsonl(self) -> str:
        """One line per round, then one for the task."""
        lines = [{"kind": "round", **entry.to_dict()} for entry in self.rounds]
        return "\n".join(json.dumps(line) for line in [*lines, {"kind": "task", **self.summary()}])

    def table(self) -> str:
        """A plain table: one row per round."""
        heads = ("round", "drift", "recursion", "max-delta", "delta cap", "uniform", "mu", "broken")
        rows = [heads, *(_cells(entry) for entry in self.rounds)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([f"task {self.task}: {self.status} ({self.scope})", *lines])


class DriftMonitor:
    """Watches one task: give it the anchor once, then theta and the norm of the mean delta after every round.

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
        rtol: float = 1e-5,
    ) -> None:
        self._anchor = flat(anchor)
        self._cfg = cfg
        self._chain = Chain(cfg.task_index, _assumed(grad_bound, delta_clip, consts, rtol))
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
        """The certificate of the round that ended in ``theta``. ``server_lr`` and ``lam`` if they change."""
        cfg, point = self._cfg, flat(theta)
        if point.shape != self._anchor.shape:
            raise ValueError(f"theta must have the anchor's {self._anchor.size} entries, got {point.size}")
        step = cfg.server_lr if server_lr is None else check.positive("server_lr", server_lr)
        pull = cfg.pull if lam is None else check.nonnegative("lam", lam)
        seen = Observed(
            drift=flat_norm(point - self._anchor),
            delta_norm=float(delta_norm),
            server_lr=step,
            lam=pull,
            pseudo_step=step * cfg.client_lr * cfg.local_steps,
            max_client_delta=max_client_delta,
            max_grad=max_grad,
            theta_norm=None if getattr(theta, "dtype", None) == "float64" else flat_norm(point),
        )
        self._rounds.append(self._chain.observe(len(self._rounds), seen))
        return self._rounds[-1]

    def summary(self) -> TaskCertificate:
        """The task so far."""
        if not self._rounds:
            raise ValueError("observe must be called before summary, got 0 rounds")
        return TaskCertificate(self._cfg.task_index, self._cfg.anchored, tuple(self._rounds))


def certify(
    events: Iterable[Mapping[str, Any]],
    *,
    grad_bound: float | None = None,
    delta_clip: float | None = None,
    consts: Constants | None = None,
    rtol: float = 1e-5,
) -> list[TaskCertificate]:
    """One certificate per task from a run's events; only those with ``event == "round"`` are read.

    ``drift`` and ``delta_norm`` must count weights only. A null ``lam`` is a task without a server-side
    anchor: its recursion is the sum of the deltas, and nothing is claimed. ``mean_steps`` stands for E,
    which is right for the mean delta when clients weigh the same; where ``plain_sgd`` is false (momentum,
    Adam, weights by samples) the links with B are left out. Optional fields ``max_grad`` (largest gradient
    norm) and ``theta_norm`` (allows for float32 rounding) are used where present.
    """
    assumed = _assumed(grad_bound, delta_clip, consts, rtol)
    chains: dict[int, Chain] = {}
    rounds: dict[int, list[RoundCertificate]] = {}
    for event in events:
        if event.get("event") != "round":
            continue
        task = check.count("task", _field(event, "task"))
        chain = chains.setdefault(task, Chain(task, assumed))
        rounds.setdefault(task, []).append(
            chain.observe(check.count("round", _field(event, "round"), low=0), _observed(event))
        )
    return [
        TaskCertificate(task, any(entry.lam is not None for entry in entries), tuple(entries))
        for task, entries in sorted(rounds.items())
    ]


def _observed(event: Mapping[str, Any]) -> Observed:
    server_lr = check.nonnegative("server_lr", _field(event, "server_lr"))
    client_lr, steps = event.get("client_lr"), event.get("mean_steps")
    delta = event.get("delta_norm")
    held = bool(event.get("held")) or event.get("num_accepted") == 0
    if delta is None and not held:
        raise ValueError(f"delta_norm must be in every round event, got {delta!r} in {_place(event)}")
    known = client_lr is not None and steps is not None and event.get("plain_sgd", True)
    return Observed(
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
    )


def _number(event: Mapping[str, Any], name: str) -> float | None:
    return None if event.get(name) is None else float(event[name])


def _field(event: Mapping[str, Any], name: str) -> Any:
    if event.get(name) is None:
        raise ValueError(f"{name} must be in every round event, got {event.get(name)!r} in {_place(event)}")
    return event[name]


def _place(event: Mapping[str, Any]) -> str:
    return f"task {event.get('task')}, round {event.get('round')}"


def _assumed(grad_bound: float | None, delta_clip: float | None, consts: Constants | None, rtol: float) -> Assumed:
    if grad_bound is None and consts is not None:
        grad_bound = consts.grad_bound
    return Assumed(
        None if grad_bound is None else check.positive("grad_bound", grad_bound),
        None if delta_clip is None else check.positive("delta_clip", delta_clip),
        consts,
        check.nonnegative("rtol", rtol),
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
    return (str(entry.round), *numbers, ", ".join(violation.link for violation in entry.violated) or "none")
