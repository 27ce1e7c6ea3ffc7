"""Rules for lam, and asynchronous aggregation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_fixtures import CFG, CONSTS, law

from fedspecial.theory import (
    CurvatureSum,
    RoundConfig,
    aggregate_async,
    budget_lam,
    check_conditions,
    drift_radius_clip,
    lam_for_bkt,
    lam_for_radius,
    laplace_lam,
    staleness_weight,
    trust_region_lam,
)
from fedspecial.theory.simulation.problems import RadialFDIL
from fedspecial.theory.simulation.simulator import server_step, simulate

SEEDS = st.integers(0, 10**6)


@law
@given(SEEDS, st.floats(1e-3, 10), st.floats(0, 0.5))
def test_trust_region_never_leaves_its_radius_under_heavy_tails(seed, radius, lam_min):
    rng = np.random.default_rng(seed)
    anchor = theta = rng.standard_normal(4)
    for _ in range(20):
        delta = rng.standard_t(1.2, 4)
        lam = trust_region_lam(theta + 0.5 * delta, anchor, radius, lam_min)
        theta = server_step(theta, delta, server_lr=0.5, lam=lam, anchor=anchor)
        assert np.linalg.norm(theta - anchor) <= radius * (1 + 1e-9)
        assert lam >= lam_min


@law
@given(SEEDS, st.sampled_from([0.01, 0.1, 0.5]), st.floats(0, 0.5))
def test_budget_rule_never_exceeds_its_budget_under_heavy_tails(seed, budget, lam_min):
    rng = np.random.default_rng(seed)
    problem = RadialFDIL(rng.standard_normal((1, 5, 4)), "pseudo_huber")
    anchor = theta = rng.standard_normal(4)
    slope = problem.task_gradient(1, anchor)
    for _ in range(20):
        delta = rng.standard_t(1.2, 4)
        move = theta + 0.5 * delta - anchor
        lam = budget_lam(float(slope @ move), 0.5 * float(move @ move), budget, lam_min)
        theta = server_step(theta, delta, server_lr=0.5, lam=lam, anchor=anchor)
        assert problem.task_loss(1, theta) - problem.task_loss(1, anchor) <= budget * (1 + 1e-9)


@law
@given(st.floats(-100, 100), st.floats(0, 100), st.floats(1e-6, 10))
def test_budget_rule_gives_the_smallest_sufficient_lam(linear, quadratic, budget):
    lam = budget_lam(linear, quadratic, budget)
    x = 1 / (1 + lam)
    assert linear * x + quadratic * x**2 <= budget * (1 + 1e-9)
    if lam > 1e-6:
        y = 1 / (1 + 0.99 * lam)
        assert linear * y + quadratic * y**2 > budget


def test_budget_rule_does_not_restrict_aligned_updates():
    assert budget_lam(-5.0, 1.0, 0.1) == 0.0


def test_clipping_and_the_radius_rule_agree():
    assert drift_radius_clip(0.5, 2.0, lam_for_radius(0.5, 2.0, 0.1)) == pytest.approx(0.1)


def test_lam_for_bkt_is_the_smallest_lam_that_meets_the_condition():
    lam = lam_for_bkt(CFG, CONSTS)
    assert check_conditions(CFG, CONSTS, "bkt").suggest()["lam"] == pytest.approx(lam, rel=1e-9)


@pytest.mark.parametrize("steps", [1, 5])
def test_laplace_lam_reaches_the_joint_optimum_of_isotropic_quadratics(steps):
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((4, 6, 3))
    theta, curvatures = centers[0].mean(axis=0), CurvatureSum()
    curvatures.add(1, 1.0)
    problem = RadialFDIL(centers, "quadratic")
    for task in (2, 3, 4):
        base = RoundConfig(6, 6, steps, 3000, task, server_lr=1 / task, client_lr=0.2, lam=0.0)
        lam = laplace_lam(base, curvatures.total, curvature=1.0)
        cfg = RoundConfig(6, 6, steps, 3000, task, server_lr=1 / task, client_lr=0.2, lam=lam)
        theta = simulate(problem, cfg, anchor=theta).theta[0]
        curvatures.add(task, 1.0)
    joint = centers.mean(axis=(0, 1))
    assert np.linalg.norm(theta - joint) < 1e-10


def test_laplace_lam_for_one_step_is_the_pseudo_step_times_kappa():
    cfg = RoundConfig(6, 6, 1, 10, 2, server_lr=0.5, client_lr=0.2, lam=0.0)
    assert laplace_lam(cfg, 3.0) == pytest.approx(laplace_lam(cfg, 3.0, curvature=0.7)) == pytest.approx(0.3)


def test_the_curvature_sum_accepts_each_task_once():
    curvatures = CurvatureSum()
    curvatures.add(1, 0.5)
    curvatures.add(2, 0.25)
    assert curvatures.total == 0.75
    with pytest.raises(ValueError, match="task"):
        curvatures.add(1, 0.5)


@law
@given(SEEDS, st.floats(0, 2))
def test_asynchronous_aggregate_keeps_the_clip_radius_for_any_delays_and_drops(seed, alpha):
    rng = np.random.default_rng(seed)
    anchor = theta = np.zeros(3)
    cap = drift_radius_clip(0.5, 1.0, 0.2)
    for _ in range(30):
        arrivals = int(rng.integers(0, 5))
        deltas, ages = list(rng.standard_t(1.2, (arrivals, 3))), list(rng.integers(0, 50, arrivals))
        delta = aggregate_async(deltas, ages, clip=1.0, alpha=alpha, quorum=2)
        if delta is None:
            assert arrivals < 2
            continue
        assert np.linalg.norm(delta) <= 1 + 1e-12
        theta = server_step(theta, delta, server_lr=0.5, lam=0.2, anchor=anchor)
        assert np.linalg.norm(theta) <= cap * (1 + 1e-12)


def test_fresh_deltas_are_averaged_and_stale_ones_have_less_weight():
    fresh = aggregate_async([[1.0, 0.0], [0.0, 1.0]], [0, 0])
    np.testing.assert_allclose(fresh, [0.5, 0.5])
    assert staleness_weight(3, 0.5) == 0.5
    np.testing.assert_allclose(aggregate_async([[1.0]], [3]), [0.5])
    with pytest.raises(ValueError, match="deltas"):
        aggregate_async([[math.nan]], [0], clip=1.0)
