"""The chain of caps on the distance to the anchor, one round at a time, from norms alone.

    drift <= recursion <= max-delta <= measured-B <= B(t) <= uniform

recursion   r' = (r + gamma_G ‖Delta‖) / (1+lam)
max-delta   max gamma_G ‖Delta‖ * W_t, and, free of t, max gamma_G ‖Delta‖ / lam (Proposition D)
measured-B  max gE * (largest gradient seen) * W_t
B(t)        max gE * (assumed B) * W_t
uniform     max (gE / lam) * (assumed B)

gE = gamma_G gamma_L E, and W' = (W + 1)/(1+lam), W_0 = 0, which is (1 - rho^t)/lam for a constant lam. The
first links hold whatever the clients do, so a broken one is a bug in the run (a wrong anchor, buffers counted
as weights, a first task that was anchored after all). The links with B need A1 and plain SGD, so a broken one
is a wrong constant. BatchNorm running statistics are not parameters: the norms count weights only.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedspecial.theory._validate import plain
from fedspecial.theory.constants import Constants
from fedspecial.theory.drift import drift_step
from fedspecial.theory.transfer import forgetting_cap


@dataclass(frozen=True)
class Violation:
    """A broken link. ``kind``: "bug" (the run contradicts itself) or "constant" (an assumed one is wrong)."""

    link: str
    kind: Literal["bug", "constant"]
    lhs: float
    rhs: float

    @property
    def message(self) -> str:
        """One line for a person."""
        cause = "a bug in the run" if self.kind == "bug" else "a wrong constant"
        return f"{self.link} does not hold ({self.lhs:.6g} against {self.rhs:.6g}): {cause}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        numbers = {"lhs": plain(self.lhs), "rhs": plain(self.rhs)}
        return {"link": self.link, "kind": self.kind, **numbers, "message": self.message}


@dataclass(frozen=True)
class RoundCertificate:
    """One round's distance to the anchor, over weights only, and the caps on it; None is "not known"."""

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

    @property
    def ratio(self) -> float | None:
        """drift / recursion bound: 1 where the deltas all pull one way, small where they cancel."""
        if self.drift is None or self.recursion_bound == 0:
            return None
        return self.drift / self.recursion_bound

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; a cap that is infinite (no anchor) is null."""
        numbers = {name: plain(value) for name, value in asdict(self).items() if name not in _NOT_NUMBERS}
        violated = [violation.to_dict() for violation in self.violated]
        return {
            "task": self.task,
            "round": self.round,
            **numbers,
            "ratio": plain(self.ratio),
            "violated": violated,
        }


_NOT_NUMBERS = ("task", "round", "violated")


@dataclass(frozen=True)
class Observed:
    """What one round showed, as norms. ``pseudo_step`` is gamma_G gamma_L E where it is known."""

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


@dataclass(frozen=True)
class Assumed:
    """What the caps may use beyond the run's own norms."""

    grad_bound: float | None = None
    delta_clip: float | None = None
    consts: Constants | None = None
    rtol: float = 1e-5


class Chain:
    """Takes rounds in order and returns a certificate for each."""

    def __init__(self, task: int, assumed: Assumed) -> None:
        self.task, self.assumed = task, assumed
        self.radius = self.weight = 0.0  # the recursion, and W_t
        self.push = self.cap = self.clip = 0.0  # max gamma_G ‖Delta‖, max of that over lam, max gamma_G C / lam
        self.step: float | None = 0.0  # max gE
        self.slope = 0.0  # max gE / lam
        self.max_grad: float | None = None

    def observe(self, index: int, seen: Observed) -> RoundCertificate:
        """The certificate of round ``index``."""
        self._advance(seen)
        grad_bound = self.assumed.grad_bound
        reach = None if self.step is None else self.step * self.weight
        caps: dict[str, float | None] = {
            "recursion_bound": self.radius,
            "delta_bound": self.push * self.weight,
            "delta_cap": self.cap,
            "measured_grad_bound_t": _times(reach, self.max_grad),
            "grad_bound_t": _times(reach, grad_bound),
            "uniform_bound": _times(None if self.step is None else self.slope, grad_bound),
            "clip_bound": None if self.assumed.delta_clip is None else self.clip,
        }
        return RoundCertificate(
            self.task, index, seen.drift, **caps,  # type: ignore[arg-type]
            lam=seen.lam, mu=self._mu(seen), forgetting_cap=self._forgetting(seen.drift),
            violated=tuple(self._violations(seen, caps)),
        )  # fmt: skip

    def _advance(self, seen: Observed) -> None:
        lam, push = seen.lam or 0.0, seen.server_lr * seen.delta_norm
        if seen.held:  # nobody answered: theta stayed, or was pulled; the old caps hold in both cases
            return
        self.radius = drift_step(self.radius, seen.server_lr, seen.delta_norm, lam)
        self.weight = (self.weight + 1) / (1 + lam)
        self.push = max(self.push, push)
        self.cap = max(self.cap, _over(push, lam))
        if self.assumed.delta_clip is not None:
            self.clip = max(self.clip, _over(seen.server_lr * self.assumed.delta_clip, lam))
        if seen.pseudo_step is None or self.step is None:
            self.step = None
        else:
            self.step = max(self.step, seen.pseudo_step)
            self.slope = max(self.slope, _over(seen.pseudo_step, lam))
        if seen.max_grad is not None:
            self.max_grad = max(self.max_grad or 0.0, seen.max_grad)

    def _mu(self, seen: Observed) -> float | None:
        if seen.mu is not None or seen.lam is None or not seen.pseudo_step:
            return seen.mu
        return seen.lam / seen.pseudo_step

    def _forgetting(self, drift: float | None) -> float | None:
        """G r + (K-1) L r^2 / 2 at the measured distance, which is a radius like any other."""
        consts = self.assumed.consts
        if consts is None or consts.old_grad_norm is None or drift is None or self.task < 2:
            return None
        if not math.isfinite(drift):
            return None
        return forgetting_cap(consts.old_grad_norm, drift, self.task - 1, consts.smoothness)

    def _violations(self, seen: Observed, caps: dict[str, float | None]) -> list[Violation]:
        # The server computes in float32: each round rounds theta by at most half a unit in the last place.
        rounding = 2.0**-23 * (seen.theta_norm or 0.0) * (1 + self.weight)
        found: list[Violation] = []

        def link(name: str, kind: Literal["bug", "constant"], lhs: float | None, rhs: float | None) -> None:
            slack = self.assumed.rtol * abs(rhs or 0.0) + rounding
            if lhs is not None and rhs is not None and not lhs <= rhs + slack:
                found.append(Violation(name, kind, lhs, rhs))

        link("drift <= recursion", "bug", seen.drift, caps["recursion_bound"])
        link("recursion <= max delta", "bug", caps["recursion_bound"], caps["delta_bound"])
        link("mean delta <= largest client delta", "bug", seen.delta_norm, seen.max_client_delta)
        link("largest client delta <= clip", "bug", seen.max_client_delta, self.assumed.delta_clip)
        if seen.lam is None:  # no server-side anchor: the clients may do more than follow gradients
            return found
        link("max delta <= measured B(t)", "constant", caps["delta_bound"], caps["measured_grad_bound_t"])
        if self.max_grad is None:
            link("max delta <= B(t)", "constant", caps["delta_bound"], caps["grad_bound_t"])
        else:
            link("measured B(t) <= B(t)", "constant", caps["measured_grad_bound_t"], caps["grad_bound_t"])
        link("B(t) <= uniform", "bug", caps["grad_bound_t"], caps["uniform_bound"])
        return found


def _times(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a * b


def _over(value: float, lam: float) -> float:
    return value / lam if lam > 0 else math.inf
