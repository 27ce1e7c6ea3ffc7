"""Bounds on the distance to the anchor, and errors in the paper's recursion."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_fixtures import CFG, configs, law, positive

from fedspecial.theory import (
    RoundConfig,
    drift_radius,
    drift_radius_clip,
    drift_radius_from_deltas,
    geometric_limit,
    special_c_drift_radius,
    special_c_literal_drift_radius,
    surrogate,
)
from fedspecial.theory.simulation.problems import make_problem
from fedspecial.theory.simulation.simulator import apply_deltas, server_step, simulate

LAM = st.floats(1e-3, 5.0)


@law
@given(configs(), positive(), st.integers(0, 300))
def test_drift_radius_grows_with_rounds_up_to_the_uniform_bound(cfg, bound, t):
    now, later = drift_radius(cfg, bound, t), drift_radius(cfg, bound, t + 1)
    assert now <= later <= drift_radius(cfg, bound) * (1 + 1e-12)


@law
@given(configs(), positive(), st.floats(1.01, 10))
def test_drift_radius_grows_with_steps_and_gradients_and_falls_with_lam(cfg, bound, factor):
    here = drift_radius(cfg, bound, cfg.rounds)
    assert drift_radius(replace(cfg, server_lr=cfg.server_lr * factor), bound, cfg.rounds) > here
    assert drift_radius(replace(cfg, client_lr=cfg.client_lr * factor), bound, cfg.rounds) > here
    assert drift_radius(replace(cfg, local_steps=cfg.local_steps + 1), bound, cfg.rounds) > here
    assert drift_radius(cfg, bound * factor, cfg.rounds) > here
    assert drift_radius(replace(cfg, lam=cfg.lam * factor), bound, cfg.rounds) < here


@law
@given(configs(), positive())
def test_drift_radius_after_many_rounds_is_the_uniform_bound(cfg, bound):
    assert drift_radius(cfg, bound, 10**9) == pytest.approx(drift_radius(cfg, bound), rel=1e-12)


@law
@given(configs(), positive(), st.integers(1, 100))
def test_drift_radius_is_continuous_at_lam_zero(cfg, bound, t):
    nearly, exactly = replace(cfg, lam=1e-15), replace(cfg, lam=0.0)
    assert drift_radius(nearly, bound, t) == pytest.approx(drift_radius(exactly, bound, t), rel=1e-12)


def test_without_an_anchor_the_bound_is_linear_in_rounds():
    free = replace(CFG, anchored=False)
    assert drift_radius(free, 2.0) == np.inf
    assert drift_radius(free, 2.0, 60) == pytest.approx(60 * drift_radius(free, 2.0, 1))


@law
@given(st.integers(0, 10**6), LAM, st.floats(0.01, 2.0), st.integers(1, 30))
def test_closed_forms_of_the_round(seed, lam, server_lr, rounds):
    """Unrolled sum, decay towards the anchor, moving average and surrogate step describe the same round."""
    rng = np.random.default_rng(seed)
    anchor, deltas = rng.standard_normal(5), rng.standard_normal((rounds, 5))
    path = apply_deltas(anchor, deltas, server_lr, lam)
    rho = 1 / (1 + lam)
    weights = rho ** np.arange(rounds, 0, -1.0)
    np.testing.assert_allclose(path[-1] - anchor, weights @ (server_lr * deltas), rtol=1e-12, atol=1e-12)
    before = path[-2] if rounds > 1 else anchor
    decayed = before + server_lr * rho * deltas[-1] - lam * rho * (before - anchor)
    averaged = anchor + rho * (before - anchor) + (1 - rho) * server_lr * deltas[-1] / lam
    cfg = RoundConfig(8, 4, 5, rounds, 2, server_lr, 0.01, lam)
    eta, mu = surrogate(cfg)
    stepped = before - eta * (-deltas[-1] / (cfg.client_lr * cfg.local_steps) + mu * (before - anchor))
    for form in (decayed, averaged, stepped):
        np.testing.assert_allclose(path[-1], form, rtol=1e-12, atol=1e-12)


@law
@given(LAM, st.floats(0.01, 2.0), st.integers(1, 50))
def test_constant_deltas_follow_the_geometric_limit(lam, server_lr, rounds):
    anchor, delta = np.array([1.0, -2.0]), np.array([0.3, 4.0])
    path = apply_deltas(anchor, [delta] * rounds, server_lr, lam)
    np.testing.assert_allclose(path[-1], geometric_limit(anchor, delta, server_lr, lam, rounds), rtol=1e-12)


def test_the_latest_round_has_the_largest_weight():
    """The paper prints the weights as rho^(tau+1); they are rho^(t-tau)."""
    last = apply_deltas([0.0], [[0.0], [0.0], [1.0]], 1.0, 1.0)[-1]
    first = apply_deltas([0.0], [[1.0], [0.0], [0.0]], 1.0, 1.0)[-1]
    assert last[0] == pytest.approx(0.5)
    assert first[0] == pytest.approx(0.125)


@law
@given(st.integers(0, 10**6))
def test_lam_zero_is_fedavg_bit_for_bit(seed):
    rng = np.random.default_rng(seed)
    theta, delta, anchor = rng.standard_normal((3, 20))
    here = server_step(theta, delta, server_lr=0.7, lam=0.0, anchor=anchor)
    assert (here == theta + 0.7 * delta).all()


@pytest.mark.parametrize("name", ["pseudo_huber", "welsch", "logistic"])
def test_no_run_leaves_the_drift_radius(name):
    problem = make_problem(name, shift=4.0, seed=3)
    bound = problem.constants().grad_bound
    for lam in (0.0, 0.05, 1.0):
        cfg = RoundConfig(8, 3, 4, 40, 2, server_lr=0.5, client_lr=0.05, lam=lam)
        trace = simulate(problem, cfg, anchor=np.zeros(10), replicates=20, seed=1)
        caps = np.array([drift_radius(cfg, bound, t + 1) for t in range(cfg.rounds)])
        assert (trace.drift <= caps[:, None] * (1 + 1e-12)).all()


def test_drift_radius_is_attained_by_a_nearly_linear_loss():
    problem = make_problem("pseudo_huber", shift=1e4, spread=0.0, noise=0.0)
    cfg = RoundConfig(8, 4, 5, 400, 2, server_lr=0.5, client_lr=0.05, lam=0.25)
    trace = simulate(problem, cfg, anchor=np.zeros(10))
    assert 0.999 <= trace.drift[-1, 0] / drift_radius(cfg, problem.constants().grad_bound) <= 1


def test_counting_epochs_as_steps_violates_the_bound_tenfold():
    problem = make_problem("pseudo_huber", shift=1e4, spread=0.0, noise=0.0)
    cfg = RoundConfig(8, 4, 50, 200, 2, server_lr=0.5, client_lr=0.05, lam=0.25)  # 5 epochs of 10 batches
    drift = simulate(problem, cfg, anchor=np.zeros(10)).drift[-1, 0]
    assert drift / drift_radius(replace(cfg, local_steps=5), 1.0) == pytest.approx(10, rel=0.01)
    assert drift / drift_radius(cfg, 1.0) <= 1


def test_a_task_without_an_anchor_exceeds_the_printed_bound():
    problem = make_problem("pseudo_huber", shift=1e4, spread=0.0, noise=0.0)
    cfg = RoundConfig(8, 8, 5, 60, 1, server_lr=0.5, client_lr=0.05, lam=0.25, anchored=False)
    drift = simulate(problem, cfg, anchor=np.zeros(10)).drift[-1, 0]
    assert drift > 14 * drift_radius(replace(cfg, anchored=True), 1.0)


@law
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_any_deltas_satisfy_the_recursion_and_proposition_d(seed, rounds):
    rng = np.random.default_rng(seed)
    lams, steps = rng.uniform(0.05, 3, rounds), rng.uniform(0.01, 2, rounds)
    deltas = rng.standard_t(1.2, (rounds, 4))
    norms = np.linalg.norm(deltas, axis=1)
    drift = float(np.linalg.norm(apply_deltas(np.zeros(4), deltas, steps, lams)[-1]))
    recursion = drift_radius_from_deltas(list(steps), list(norms), list(lams))
    assert drift <= recursion * (1 + 1e-12)
    assert recursion <= (steps * norms / lams).max() * (1 + 1e-12)


def test_clipped_deltas_reach_at_most_the_clip_radius():
    cap = drift_radius_clip(0.5, 2.0, 0.25)
    assert drift_radius_from_deltas(0.5, [2.0] * 500, 0.25) == pytest.approx(cap)


def test_the_radii_of_special_and_special_c_differ_by_twice_the_pseudo_step():
    cfg = RoundConfig(8, 4, 5, 20, 2, server_lr=0.5, client_lr=0.01, lam=0.25)
    special = drift_radius(cfg, 2.0)
    assert special / special_c_drift_radius(2.0, cfg.lam) == pytest.approx(2 * 0.5 * 0.01 * 5)
    assert special / special_c_literal_drift_radius(cfg.client_lr, 2.0, cfg.lam) == pytest.approx(2 * 0.5 * 5)


def special_c_drifts(prox, gradients, client_lr, lam, server_lr):
    """‖theta^t - a‖ after each round, a = 0. gradients: round, client, step, coordinate. S = 5 for an epoch."""
    theta, drifts = np.zeros(gradients.shape[-1]), []
    for round_gradients in gradients:
        models = np.tile(theta, (gradients.shape[1], 1))
        for step in range(gradients.shape[2]):
            models = models - client_lr * round_gradients[:, step]
            if prox == "penalty":
                models = models - client_lr * 2 * lam * (models + client_lr * round_gradients[:, step])
            elif prox == "step_scaled":
                models = models / (1 + 2 * client_lr * lam)
            elif prox == "step_literal" or (step + 1) % 5 == 0:
                models = models / (1 + 2 * lam)
        theta = theta + server_lr * (models.mean(axis=0) - theta)
        drifts.append(float(np.linalg.norm(theta)))
    return drifts


def special_c_radius(prox, client_lr, grad_bound, lam):
    if prox in ("step_scaled", "penalty"):
        return special_c_drift_radius(grad_bound, lam)
    steps = {"step_literal": 1, "epoch_literal": 5}[prox]
    return special_c_literal_drift_radius(client_lr, grad_bound, lam, steps_per_pull=steps)


PROXES = ["step_scaled", "step_literal", "epoch_literal", "penalty"]


@pytest.mark.parametrize("prox", PROXES)
def test_a_linear_loss_attains_the_radius_of_special_c(prox):
    """All gradients are equal and of norm B = 1, so every triangle inequality of the proof is an equality."""
    gradients = np.zeros((400, 3, 10, 2))
    gradients[..., 0] = -1.0
    drifts = special_c_drifts(prox, gradients, 0.1, 0.5, server_lr=0.5)
    radius = special_c_radius(prox, 0.1, 1.0, 0.5)
    assert drifts == sorted(drifts)
    assert radius >= drifts[-1] >= 0.9999 * radius


@law
@given(st.integers(0, 10**6), st.sampled_from(PROXES), st.floats(0.01, 0.5), st.floats(0.05, 1.0))
def test_no_gradients_of_bounded_norm_leave_the_radius_of_special_c(seed, prox, client_lr, lam):
    """2·gamma_L·lam <= 1 throughout, as the penalty needs it."""
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(8, 4, 10, 3)) + 2 * rng.normal(size=3)
    gradients *= 2.0 / np.linalg.norm(gradients, axis=-1, keepdims=True)
    drifts = special_c_drifts(prox, gradients, client_lr, lam, server_lr=rng.uniform(0.1, 1))
    assert max(drifts) <= special_c_radius(prox, client_lr, 2.0, lam) * (1 + 1e-12)


def test_the_radius_of_the_printed_prox_does_not_hold_for_the_scaled_one():
    """gamma_L = 0.1, lam = 1/2, B = 1: after one round of 10 steps the drift is 1 - 1.1^-10 = 0.614, and
    gamma_L B / (2 lam) is 0.1."""
    gradients = np.full((1, 1, 10, 1), -1.0)
    (drift,) = special_c_drifts("step_scaled", gradients, 0.1, 0.5, server_lr=1.0)
    assert drift == pytest.approx(1 - 1.1**-10)
    assert special_c_literal_drift_radius(0.1, 1.0, 0.5) == pytest.approx(0.1)
    assert special_c_drift_radius(1.0, 0.5) == 1.0
