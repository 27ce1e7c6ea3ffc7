"""Upper bounds on the distance to the anchor, updated round by round from norms alone.

The bounds are ordered, each at most as large as the next:

    drift <= recursion <= max-delta <= measured-B <= B(t) <= uniform

recursion   r' = (r + gamma_G ‖Delta‖) / (1+lam)
max-delta   max gamma_G ‖Delta‖ * W_t, and, free of t, max gamma_G ‖Delta‖ / lam (Proposition D)
measured-B  max gE * (largest gradient seen) * W_t
B(t)        max gE * (assumed B) * W_t
uniform     max (gE / lam) * (assumed B)

With a server optimizer, Delta is what it made of the mean delta: the step is gamma_G times that. The bounds with B and
with a clipped delta do not apply then.

gE = gamma_G gamma_L E, and W' = (W + 1)/(1+lam), W_0 = 0, which is (1 - rho^t)/lam for a constant lam.

Where each weight has a strength of its own, lam is the smallest one. A second recursion and cap are then computed for
the weights that are pulled with more than a little strength (`anchored_drift_cap`).

The first inequalities hold whatever the clients do. If one of them is violated, the run has a bug (a wrong
anchor, buffers counted as weights, a first task that was anchored although it should not be). The
inequalities with B need A1 and plain SGD. If one of them is violated, a constant is wrong. BatchNorm running
statistics are not parameters, so the norms include weights only.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedspecial.core.anchored import AnchoredPart
from fedspecial.theory.bounds.drift import drift_step
from fedspecial.theory.bounds.forgetting import forgetting_cap
from fedspecial.theory.constants import Constants
from fedspecial.theory.validation import finite_or_none


@dataclass(frozen=True)
class Violation:
    """A violated inequality. ``kind``: "bug" (the run contradicts itself) or "constant" (a constant is wrong)."""

    inequality: str
    kind: Literal["bug", "constant"]
    lhs: float
    rhs: float

    @property
    def message(self) -> str:
        """One line that says what is violated and what this means."""
        cause = "a bug in the run" if self.kind == "bug" else "a wrong constant"
        return f"{self.inequality} is violated ({self.lhs:.6g} > {self.rhs:.6g}): {cause}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        numbers = {"lhs": finite_or_none(self.lhs), "rhs": finite_or_none(self.rhs)}
        return {"inequality": self.inequality, "kind": self.kind, **numbers, "message": self.message}


@dataclass(frozen=True)
class AnchoredCertificate:
    """The bounds on the weights that are pulled with at least ``lam``, where each weight has its own strength."""

    share: float
    lam: float
    drift: float
    recursion_bound: float
    delta_cap: float

    def to_dict(self) -> dict[str, float | None]:
        """Plain JSON."""
        return {name: finite_or_none(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class RoundCertificate:
    """The distance to the anchor after one round, over weights only, and the bounds on it. None means "not known"."""

    task: int
    round: int
    drift: float | None
    recursion_bound: float
    delta_bound: float
    delta_cap: float
    measured_grad_bound_t: float | None
    grad_bound_t: float | None
    uniform_bound: float | None
    clip_bound: float | None
    lam: float | None
    mu: float | None
    forgetting_cap: float | None
    violated: tuple[Violation, ...] = ()
    anchored: AnchoredCertificate | None = None

    @property
    def ratio(self) -> float | None:
        """drift / recursion bound: 1 where all deltas have the same direction, small where they cancel."""
        if self.drift is None or self.recursion_bound == 0:
            return None
        return self.drift / self.recursion_bound

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; an infinite bound (no anchor) is null."""
        numbers = {name: finite_or_none(value) for name, value in asdict(self).items() if name not in _NOT_NUMBERS}
        violated = [violation.to_dict() for violation in self.violated]
        return {
            "task": self.task,
            "round": self.round,
            **numbers,
            "ratio": finite_or_none(self.ratio),
            "violated": violated,
            **({"anchored": self.anchored.to_dict()} if self.anchored else {}),
        }


_NOT_NUMBERS = ("task", "round", "violated", "anchored")


@dataclass(frozen=True)
class RoundNorms:
    """The norms observed in one round. ``pseudo_step`` is gamma_G gamma_L E where it is known.

    ``step_norm`` is the norm of what a server optimizer made of the mean delta (momentum, Adam); None without one.
    """

    drift: float | None
    delta_norm: float
    server_lr: float
    lam: float | None
    pseudo_step: float | None = None
    max_client_delta: float | None = None
    max_grad: float | None = None
    mu: float | None = None
    theta_norm: float | None = None
    held: bool = False
    step_norm: float | None = None
    anchored: AnchoredPart | None = None

    @property
    def push(self) -> float:
        """The norm of the server's step before the pull to the anchor."""
        return self.server_lr * (self.delta_norm if self.step_norm is None else self.step_norm)


RTOL = 1e-5
"""Allows for rounding in the norms and for nothing else. The norms of a run have a relative error below 1e-6 for up to
10^8 weights, and an inequality has such norms on both sides. 1e-5 is five times that, and far below any error of a
formula."""


@dataclass(frozen=True)
class Assumptions:
    """What the bounds may use beyond the norms of the run. ``rtol``: how far an inequality may be off by rounding."""

    grad_bound: float | None = None
    delta_clip: float | None = None
    consts: Constants | None = None
    rtol: float = RTOL


class BoundTracker:
    """Updates the bounds round by round, in order, and returns a certificate for each round."""

    def __init__(self, task: int, assumptions: Assumptions) -> None:
        self.task, self.assumptions = task, assumptions
        self.radius = self.weight = 0.0  # the recursion, and W_t
        self.push = self.cap = self.clip = 0.0  # max gamma_G ‖Delta‖, max of that over lam, max gamma_G C / lam
        self.step: float | None = 0.0  # max gE
        self.slope = 0.0  # max gE / lam
        self.max_grad: float | None = None
        self.anchored_radius = self.anchored_cap = 0.0  # the recursion and the cap of the anchored part

    def observe(self, index: int, norms: RoundNorms) -> RoundCertificate:
        """The certificate of round ``index``."""
        self._advance(norms)
        part = self._anchored(norms)
        grad_bound = self.assumptions.grad_bound
        reach = None if self.step is None else self.step * self.weight
        caps: dict[str, float | None] = {
            "recursion_bound": self.radius,
            "delta_bound": self.push * self.weight,
            "delta_cap": self.cap,
            "measured_grad_bound_t": _times(reach, self.max_grad),
            "grad_bound_t": _times(reach, grad_bound),
            "uniform_bound": _times(None if self.step is None else self.slope, grad_bound),
            "clip_bound": None if self.assumptions.delta_clip is None else self.clip,
        }
        return RoundCertificate(
            self.task, index, norms.drift, **caps,  # type: ignore[arg-type]
            lam=norms.lam, mu=self._mu(norms), forgetting_cap=self._forgetting(norms.drift),
            violated=tuple(self._violations(norms, caps, part)), anchored=part,
        )  # fmt: skip

    def _advance(self, norms: RoundNorms) -> None:
        lam, push = norms.lam or 0.0, norms.push
        if norms.held:  # no update arrived: theta is unchanged or closer to the anchor, so the old bounds still hold
            return
        self.radius = drift_step(self.radius, 1.0, push, lam)
        self.weight = (self.weight + 1) / (1 + lam)
        self.push = max(self.push, push)
        self.cap = max(self.cap, _over(push, lam))
        if norms.step_norm is not None:
            self.clip = math.inf  # a clipped delta does not limit what a server optimizer makes of it
        elif self.assumptions.delta_clip is not None:
            self.clip = max(self.clip, _over(norms.server_lr * self.assumptions.delta_clip, lam))
        if norms.pseudo_step is None or self.step is None:
            self.step = None
        else:
            self.step = max(self.step, norms.pseudo_step)
            self.slope = max(self.slope, _over(norms.pseudo_step, lam))
        if norms.max_grad is not None:
            self.max_grad = max(self.max_grad or 0.0, norms.max_grad)

    def _anchored(self, norms: RoundNorms) -> AnchoredCertificate | None:
        part = norms.anchored
        if part is None:
            return None
        if not norms.held:
            self.anchored_radius = drift_step(self.anchored_radius, norms.server_lr, part.delta_norm, part.lam)
            self.anchored_cap = max(self.anchored_cap, _over(norms.server_lr * part.delta_norm, part.lam))
        return AnchoredCertificate(part.share, part.lam, part.drift, self.anchored_radius, self.anchored_cap)

    def _mu(self, norms: RoundNorms) -> float | None:
        if norms.mu is not None or norms.lam is None or not norms.pseudo_step:
            return norms.mu
        return norms.lam / norms.pseudo_step

    def _forgetting(self, drift: float | None) -> float | None:
        """G r + (K-1) L r^2 / 2 with the measured distance as the radius."""
        consts = self.assumptions.consts
        if consts is None or consts.old_grad_norm is None or drift is None or self.task < 2:
            return None
        if not math.isfinite(drift):
            return None
        return forgetting_cap(consts.old_grad_norm, drift, self.task - 1, consts.smoothness)

    def _violations(
        self, norms: RoundNorms, caps: dict[str, float | None], part: AnchoredCertificate | None
    ) -> list[Violation]:
        # The server computes in float32, so each round changes theta by at most half a unit in the last place.
        rounding = 2.0**-23 * (norms.theta_norm or 0.0) * (1 + self.weight)
        found: list[Violation] = []

        def compare(name: str, kind: Literal["bug", "constant"], lhs: float | None, rhs: float | None) -> None:
            slack = self.assumptions.rtol * abs(rhs or 0.0) + rounding
            if lhs is not None and rhs is not None and not lhs <= rhs + slack:
                found.append(Violation(name, kind, lhs, rhs))

        compare("drift <= recursion", "bug", norms.drift, caps["recursion_bound"])
        if part is not None:
            compare("drift of the anchored part <= recursion", "bug", part.drift, part.recursion_bound)
            compare("recursion of the anchored part <= max delta / lam", "bug", part.recursion_bound, part.delta_cap)
        compare("recursion <= max delta", "bug", caps["recursion_bound"], caps["delta_bound"])
        compare("mean delta <= largest client delta", "bug", norms.delta_norm, norms.max_client_delta)
        compare("largest client delta <= clip", "bug", norms.max_client_delta, self.assumptions.delta_clip)
        # Without a server-side anchor the method may train its clients on more than the gradient of their loss.
        if norms.lam is None:
            return found
        compare("max delta <= measured B(t)", "constant", caps["delta_bound"], caps["measured_grad_bound_t"])
        if self.max_grad is None:
            compare("max delta <= B(t)", "constant", caps["delta_bound"], caps["grad_bound_t"])
        else:
            compare("measured B(t) <= B(t)", "constant", caps["measured_grad_bound_t"], caps["grad_bound_t"])
        compare("B(t) <= uniform", "bug", caps["grad_bound_t"], caps["uniform_bound"])
        return found


def _times(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a * b


def _over(value: float, lam: float) -> float:
    return value / lam if lam > 0 else math.inf
