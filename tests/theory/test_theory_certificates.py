"""The bounds hold for any correct run, and certificates distinguish bugs from wrong constants."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_fixtures import CFG, law

from fedspecial.theory import (
    Constants,
    DriftMonitor,
    RoundConfig,
    anchored_drift_cap,
    certify,
    drift_radius_clip,
    drift_radius_from_deltas,
    drift_radius_per_weight,
    flat_norm,
)
from fedspecial.theory.simulation.problems import make_problem
from fedspecial.theory.simulation.simulator import apply_deltas, simulate

ORDER = ("drift", "recursion_bound", "delta_bound", "measured_grad_bound_t", "grad_bound_t", "uniform_bound")


def events(deltas, lam, server_lr=0.5, task=2, anchor=None, **more):
    """The events that a run with these mean deltas would log."""
    start = np.zeros(len(deltas[0])) if anchor is None else anchor
    path = apply_deltas(start, deltas, server_lr, lam)
    return [
        {"event": "round", "task": task, "round": t, "server_lr": server_lr, "client_lr": 0.1, "lam": lam,
         "mean_steps": 4.0, "clients_per_round": 4, "num_accepted": 4, "delta_norm": flat_norm(delta),
         "max_client_delta": 2 * flat_norm(delta), "drift": flat_norm(theta - start), "mu": lam / 0.2, **more}
        for t, (delta, theta) in enumerate(zip(deltas, path, strict=True))
    ]  # fmt: skip


def test_bounds_are_ordered_for_a_run_of_sgd():
    problem = make_problem("logistic", shift=3.0)
    cfg = RoundConfig(8, 4, 5, 60, 2, server_lr=0.5, client_lr=0.2, lam=0.1)
    bound = problem.constants().grad_bound
    trace = simulate(problem, cfg, anchor=np.zeros(10))
    log = [
        {"event": "round", "task": 2, "round": t, "server_lr": 0.5, "client_lr": 0.2, "mean_steps": 5, "lam": 0.1,
         "drift": trace.drift[t, 0], "delta_norm": trace.delta_norm[t, 0], "num_accepted": 4,
         "max_client_delta": trace.max_client_delta[t, 0], "max_grad": 0.9 * bound}
        for t in range(60)
    ]  # fmt: skip
    (task,) = certify(log, grad_bound=bound)
    assert task.status == "holds"
    for entry in task.rounds:
        values = [getattr(entry, name) for name in ORDER]
        assert values == sorted(values)
        assert entry.delta_bound <= entry.delta_cap
        assert entry.mu == pytest.approx(0.1 / (0.5 * 0.2 * 5))


@law
@given(st.integers(0, 10**6), st.floats(0.01, 5), st.integers(1, 40))
def test_no_deltas_can_violate_the_bounds_without_assumptions(seed, lam, rounds):
    deltas = np.random.default_rng(seed).standard_t(1.2, (rounds, 3))
    (task,) = certify(events(deltas, lam))
    assert task.status == "holds"
    assert task.max_ratio <= 1 + 1e-12


@law
@given(st.integers(0, 10**6))
def test_monitor_and_events_give_the_same_certificate(seed):
    rng = np.random.default_rng(seed)
    cfg = RoundConfig(8, 4, 4, 10, 2, server_lr=0.5, client_lr=0.1, lam=0.3)
    anchor, deltas = rng.standard_normal(4), rng.standard_normal((10, 4))
    monitor = DriftMonitor(anchor, cfg, grad_bound=100.0)
    for delta, theta in zip(deltas, apply_deltas(anchor, deltas, 0.5, 0.3), strict=True):
        monitor.observe(theta, flat_norm(delta), max_client_delta=2 * flat_norm(delta))
    (read,) = certify(events(deltas, 0.3, anchor=anchor), grad_bound=100.0)
    assert [e.recursion_bound for e in monitor.summary().rounds] == [e.recursion_bound for e in read.rounds]
    assert monitor.summary().status == read.status == "holds"


def test_a_wrong_anchor_is_reported_as_a_bug():
    log = events(np.ones((5, 3)), lam=1.0)
    log[3]["drift"] *= 2
    (task,) = certify(log)
    assert task.status == "bug in the run"
    assert [v.inequality for v in task.violations] == ["drift <= recursion"]
    assert "a bug in the run" in task.violations[0].message


def test_a_server_that_omits_the_anchor_is_reported_as_a_bug():
    """A server that reports lam = 0.5 but does plain averaging exceeds the recursion bound."""
    honest = events(np.ones((6, 2)), lam=0.0)
    (task,) = certify([{**event, "lam": 0.5} for event in honest])
    assert task.status == "bug in the run"


def test_too_small_a_gradient_bound_is_reported_as_a_wrong_constant():
    (task,) = certify(events(np.ones((5, 3)), lam=0.5), grad_bound=0.1)
    assert task.status == "wrong constant"
    assert {v.kind for v in task.violations} == {"constant"}
    seen = events(np.ones((5, 3)), lam=0.5, max_grad=8.0)
    (task,) = certify(seen, grad_bound=5.0)
    assert {v.inequality for v in task.violations} == {"measured B(t) <= B(t)"}


def test_a_mean_delta_larger_than_every_client_delta_is_a_bug():
    log = events(np.ones((3, 3)), lam=0.5, max_client_delta=0.1)
    assert certify(log)[0].status == "bug in the run"


def test_clipped_deltas_satisfy_the_clip_bound_and_larger_ones_are_a_bug():
    rng = np.random.default_rng(0)
    deltas = rng.standard_t(1.2, (50, 3))
    deltas /= np.maximum(1, np.linalg.norm(deltas, axis=1, keepdims=True))
    log = [{**event, "max_client_delta": 1.0} for event in events(deltas, 0.2)]
    (task,) = certify(log, delta_clip=1.0)
    assert task.status == "holds"
    assert all(e.drift <= e.clip_bound == drift_radius_clip(0.5, 1.0, 0.2) for e in task.rounds)
    assert certify(log, delta_clip=0.5)[0].status == "bug in the run"


BREACHES = {
    "drift <= recursion": ("drift", {}),
    "mean delta <= largest client delta": ("delta_norm", {}),
    "largest client delta <= clip": ("max_client_delta", {"delta_clip": 1.0}),
    "max delta <= measured B(t)": ("delta_norm", {}),
    "max delta <= B(t)": ("delta_norm", {"grad_bound": 5.0}),
    "measured B(t) <= B(t)": ("max_grad", {"grad_bound": 5.0}),
}


@pytest.mark.parametrize(("factor", "noticed"), [(1.0, False), (1 + 5e-6, False), (1 + 2e-5, True), (1.05, True)])
@pytest.mark.parametrize("inequality", BREACHES)
def test_only_rounding_is_tolerated(inequality, factor, noticed):
    """One round in which all inequalities are equalities: gamma_G ½, lam 1, gamma_L E B = 0.05·4·5 = 1 = ‖Delta‖,
    so that the distance is ½·1/(1 + 1) = ¼. Then one number is larger by 0.0005 %, 0.002 % or 5 %."""
    event = {
        "event": "round", "task": 2, "round": 0, "server_lr": 0.5, "client_lr": 0.05, "lam": 1.0, "mean_steps": 4.0,
        "num_accepted": 4, "delta_norm": 1.0, "max_client_delta": 1.0, "drift": 0.25, "max_grad": 5.0,
    }  # fmt: skip
    name, assumed = BREACHES[inequality]
    if inequality == "max delta <= B(t)":
        del event["max_grad"]  # it is used only where no gradient was measured
    (task,) = certify([{**event, name: factor * event[name]}], **assumed)
    assert (inequality in [v.inequality for v in task.violations]) == noticed
    assert (task.status == "holds") == (not noticed)


def test_a_nan_drift_is_a_violation():
    log = events(np.ones((2, 3)), lam=0.5)
    log[1]["drift"] = float("nan")
    assert certify(log)[0].status == "bug in the run"


def test_tasks_without_an_anchor_claim_nothing():
    first = events(np.ones((4, 3)), lam=0.0, task=1)
    log = [{**event, "lam": None, "drift": None, "mu": None} for event in first] + events(np.ones((4, 3)), lam=0.5)
    one, two = certify([{"event": "task"}, *log])
    assert (one.status, two.status) == ("not anchored", "holds")
    assert one.rounds[-1].recursion_bound == pytest.approx(4 * 0.5 * np.sqrt(3))
    assert one.to_dict()["delta_cap"] is None


def test_a_round_without_updates_keeps_the_bounds():
    log = events(np.ones((3, 3)), lam=0.5)
    still = {**log[-1], "round": 3, "num_accepted": 0, "delta_norm": 0.0, "max_client_delta": 0.0}
    (task,) = certify([*log, still])
    assert task.status == "holds"
    assert task.rounds[3].recursion_bound == task.rounds[2].recursion_bound


def test_forgetting_cap_uses_the_measured_distance():
    (task,) = certify(events(np.ones((3, 3)), lam=0.5), consts=Constants(100.0, 2.0, old_grad_norm=0.5))
    last = task.rounds[-1]
    assert last.forgetting_cap == pytest.approx(0.5 * last.drift + last.drift**2)
    assert task.to_dict()["forgetting_cap"] == max(e.forgetting_cap for e in task.rounds)


def test_certificates_are_plain_json_and_say_that_buffers_are_excluded():
    (task,) = certify(events(np.ones((3, 3)), lam=0.5))
    record = json.loads(json.dumps(task.to_dict(), allow_nan=False))
    assert record["status"] == "holds"
    assert "BatchNorm" in record["scope"]
    lines = [json.loads(line) for line in task.to_jsonl().splitlines()]
    assert [line["kind"] for line in lines] == ["round", "round", "round", "task"]
    assert len(task.table().splitlines()) == 5


def test_float32_rounding_is_not_a_bug():
    rng = np.random.default_rng(0)
    anchor = 100 * rng.standard_normal(50).astype(np.float32)
    monitor = DriftMonitor(anchor, replace(CFG, lam=0.05, server_lr=1.0))
    theta = anchor
    for _ in range(30):
        delta = (1e-5 * rng.standard_normal(50)).astype(np.float32)
        theta = ((theta + delta + np.float32(0.05) * anchor) / np.float32(1.05)).astype(np.float32)
        monitor.observe(theta, flat_norm(delta))
    assert monitor.summary().status == "holds"


@pytest.mark.parametrize("name", ["task", "round", "server_lr", "delta_norm"])
def test_an_event_without_a_required_field_is_rejected_by_name(name):
    log = events(np.ones((1, 3)), lam=0.5)
    with pytest.raises(ValueError, match=name):
        certify([{**log[0], name: None}])


def weighted_events(deltas, strengths, chosen, server_lr=0.5):
    """The events of a run in which each weight has its own strength; the anchor is 0."""
    theta, log = np.zeros(deltas.shape[1]), []
    for t, (delta, strength) in enumerate(zip(deltas, strengths, strict=True)):
        theta = (theta + server_lr * delta) / (1 + strength)
        part = {"share": chosen.mean(), "lam": strength[chosen].min(), "drift": flat_norm(theta[chosen]),
                "delta_norm": flat_norm(delta[chosen])}  # fmt: skip
        log.append(
            {"event": "round", "task": 2, "round": t, "server_lr": server_lr, "lam": strength.min(), "anchored": part,
             "delta_norm": flat_norm(delta), "drift": flat_norm(theta), "num_accepted": 4}
        )  # fmt: skip
    return log


@law
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_certificates_hold_for_strengths_that_differ_by_weight_and_round(rounds, size, seed):
    rng = np.random.default_rng(seed)
    deltas = rng.normal(size=(rounds, size)) * 10 ** rng.uniform(-2, 2, (rounds, 1))
    strengths = 10 ** rng.uniform(-4, 1.3, (rounds, size))
    chosen = rng.random(size) < 0.5
    chosen[rng.integers(size)] = True
    log = weighted_events(deltas, strengths, chosen)
    (task,) = certify(log)
    assert task.status == "holds"
    steps, lams = [0.5] * rounds, [event["anchored"]["lam"] for event in log]
    norms = [event["anchored"]["delta_norm"] for event in log]
    last = task.rounds[-1].anchored
    assert last.drift <= last.recursion_bound * (1 + 1e-9)
    assert last.recursion_bound <= last.delta_cap * (1 + 1e-9)
    assert last.delta_cap == pytest.approx(anchored_drift_cap(steps, norms, lams))
    assert last.recursion_bound == pytest.approx(drift_radius_from_deltas(steps, norms, lams))
    assert last.drift <= flat_norm(drift_radius_per_weight(steps, deltas, strengths)[chosen]) * (1 + 1e-9)


def test_a_part_that_is_pulled_less_than_reported_is_a_bug():
    deltas, strengths = np.ones((3, 2)), np.full((3, 2), 0.5)
    log = weighted_events(deltas, strengths, np.array([True, False]))
    for event in log:
        event["anchored"]["lam"] = 2.0
    (task,) = certify(log)
    assert task.status == "bug in the run"
    assert {violation.inequality for violation in task.violations} == {"drift of the anchored part <= recursion"}


def test_the_anchored_part_by_hand():
    """γ_G‖Δ_A‖ = 0.5·2 = 1; λ = 1, then 3: r = 1/2, then (1/2 + 1)/4 = 3/8; the cap stays 1."""
    log = weighted_events(
        np.array([[2.0, 7.0], [2.0, 7.0]]), np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([True, False])
    )
    (task,) = certify(log)
    assert [entry.anchored.recursion_bound for entry in task.rounds] == [0.5, 0.375]
    assert [entry.anchored.drift for entry in task.rounds] == [0.5, 0.375]
    assert task.summary()["anchored_part"] == {
        "share": 0.5, "lam": 3.0, "drift": 0.375, "recursion_bound": 0.375, "delta_cap": 1.0,
    }  # fmt: skip
    assert "anchored_part" not in certify(events(np.ones((2, 2)), 0.5))[0].summary()


def test_the_bound_of_each_weight_is_attained_by_updates_of_one_sign():
    deltas, strengths = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 0.0], [1.0, 3.0]])
    assert drift_radius_per_weight([1.0, 1.0], deltas, strengths).tolist() == [(0.5 + 3) / 2, (2 + 4) / 4]
