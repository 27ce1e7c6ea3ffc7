"""The cap on the drift holds for any order, loss and staleness of updates, and a broken step is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspecial.core.staleness import Staleness, staleness_weight
from fedspecial.theory.certificates.run import certify_task

LAM = st.floats(0.01, 3.0)
RULES: st.SearchStrategy[tuple[Staleness, float, float]] = st.tuples(
    st.sampled_from(("constant", "polynomial", "hinge")), st.floats(0, 3), st.floats(0, 5)
)


def play(
    seed: int, rule: tuple[Staleness, float, float], normalise: str, lams: list[float], spoil: Callable[[Any], None]
) -> list[dict[str, Any]]:
    """A task of random steps on a random problem: clients start from any earlier version, and some updates are lost."""
    rng = np.random.default_rng(seed)
    anchor = rng.normal(size=3)
    versions, events = [anchor], []
    for version, lam in enumerate(lams):
        theta, server_lr = versions[-1], float(rng.uniform(0.1, 2))
        ages = rng.integers(0, version + 1, size=rng.integers(0, 5))
        # Any vector can be a delta: here one that depends on the stale version, with a random rotation and size.
        deltas = [rng.normal(size=(3, 3)) @ (versions[version - age] + 1) * rng.exponential() for age in ages]
        factors = [staleness_weight(float(age), *rule) for age in ages]
        total = len(ages) if normalise == "count" else sum(factors)
        weights = [factor / total for factor in factors]
        mean = sum((w * d for w, d in zip(weights, deltas, strict=True)), np.zeros(3))
        if len(ages):
            versions.append((theta + server_lr * mean + lam * anchor) / (1 + lam))
        else:
            versions.append(theta)
        updates = [
            {"client": i, "staleness": int(age), "weight": w, "norm": float(np.linalg.norm(d))}
            for i, (age, w, d) in enumerate(zip(ages, weights, deltas, strict=True))
        ]
        events += [
            {"event": "round", "task": 2, "round": version, "held": not updates, "server_lr": server_lr, "lam": lam,
             "delta_norm": float(np.linalg.norm(mean)), "drift": float(np.linalg.norm(versions[-1] - anchor)),
             "max_client_delta": max((u["norm"] for u in updates), default=0.0), "num_accepted": len(updates)},
            {"event": "server_step", "task": 2, "round": version, "updates": updates},
        ]  # fmt: skip
    spoil(events)
    return events


@settings(max_examples=150)
@given(st.integers(0, 2**32), RULES, st.sampled_from(("count", "sum")), st.lists(LAM, min_size=1, max_size=12))
def test_the_cap_holds_for_any_order_loss_and_staleness(
    seed: int, rule: tuple[Staleness, float, float], normalise: str, lams: list[float]
) -> None:
    events = play(seed, rule, normalise, lams, lambda events: None)
    certificate = certify_task(events, 2)
    assert not certificate.violations
    steps = events[::2]
    push = max((e["server_lr"] * e["max_client_delta"] / e["lam"] for e in steps if not e["held"]), default=0.0)
    assert all(event["drift"] <= push * (1 + 1e-9) + 1e-12 for event in steps)
    if certificate.asynchronous is not None:
        assert certificate.asynchronous.weighted_bound <= push * (1 + 1e-9)
        assert certificate.asynchronous.max_weight_sum <= 1 + 1e-9


def spoilt_by(change: dict[str, Any], of: str) -> Callable[[list[dict[str, Any]]], None]:
    def spoil(events: list[dict[str, Any]]) -> None:
        event = next(e for e in events if e["event"] == "server_step" and e["updates"])
        target = event["updates"][0] if of == "update" else events[events.index(event) - 1]
        target |= change

    return spoil


@pytest.mark.parametrize(
    ("change", "of", "violated"),
    [
        ({"weight": 1.5}, "update", "sum of weights <= 1"),
        ({"weight": -0.5}, "update", "0 <= weight"),
        ({"norm": 0.0}, "update", "mean delta <= weighted norms"),
        ({"drift": 1e6}, "round", "drift <= weighted recursion"),
    ],
)
def test_a_step_that_breaks_the_rules_is_noticed(change: dict[str, Any], of: str, violated: str) -> None:
    events = play(7, ("polynomial", 0.5, 4.0), "count", [0.5] * 3, spoilt_by(change, of))
    certificate = certify_task(events, 2)
    assert violated in {violation.inequality for violation in certificate.violations}
    assert certificate.status == "bug in the run"


def test_the_bound_of_two_steps_by_hand() -> None:
    """Weights ½ and ½, norms 2 and 4, γ_G = 1, λ = 1: (0 + 3)/2 = 3/2; then weight ½, norm 4: (3/2 + 2)/2 = 7/4."""

    def events(round: int, *updates: tuple[float, float]) -> list[dict[str, Any]]:
        pushed = sum(weight * norm for weight, norm in updates)
        used = [{"client": 0, "staleness": 0, "weight": weight, "norm": norm} for weight, norm in updates]
        return [
            {"event": "round", "task": 2, "round": round, "held": False, "server_lr": 1.0, "lam": 1.0, "drift": 0.5,
             "delta_norm": pushed, "max_client_delta": 4.0, "num_accepted": len(used)},
            {"event": "server_step", "task": 2, "round": round, "updates": used},
        ]  # fmt: skip

    found = certify_task([*events(0, (0.5, 2.0), (0.5, 4.0)), *events(1, (0.5, 4.0))], 2).asynchronous
    assert found is not None
    assert (found.weighted_bound, found.updates) == (1.75, 3)
