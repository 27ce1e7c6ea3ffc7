"""Bounds on forgetting and backward transfer, on simulated runs and in closed form."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_fixtures import configs, constants, law, positive

from fedspecial.theory import (
    Constants,
    RoundConfig,
    bkt_slack,
    bkt_step_max,
    chained_forgetting_cap,
    check_conditions,
    drift_radius,
    forgetting_cap,
    lam_for_bkt,
    old_grad_norm_upper,
    paper_bkt_slack,
    radius_for_budget,
)
from fedspecial.theory.estimators import alignment
from fedspecial.theory.simulation.problems import RadialFDIL, make_problem
from fedspecial.theory.simulation.simulator import minimise, simulate, simulate_tasks


@law
@given(st.floats(0, 100), st.integers(1, 10), positive(), positive(1e-6, 100))
def test_radius_for_budget_inverts_the_forgetting_cap(slope, tasks, smoothness, budget):
    radius = radius_for_budget(slope, tasks, smoothness, budget)
    assert forgetting_cap(slope, radius, tasks, smoothness) == pytest.approx(budget, rel=1e-12)


@law
@given(configs(min_task=2), constants())
def test_the_bkt_condition_is_a_bound_on_the_drift_radius(cfg, consts):
    limit = consts.alignment * consts.old_grad_norm / ((cfg.task_index - 1) * consts.smoothness)
    step, radius = bkt_step_max(cfg, consts), drift_radius(cfg, consts.grad_bound)
    assert cfg.step / step == pytest.approx(radius / limit, rel=1e-9)
    assert lam_for_bkt(cfg, consts) == pytest.approx(cfg.lam * cfg.step / step, rel=1e-9)


@law
@given(configs(min_task=2), constants(), st.integers(1, 500))
def test_bkt_slack_grows_to_a_limit_and_falls_like_one_over_clients(cfg, consts, t):
    assert bkt_slack(cfg, consts, t) <= bkt_slack(cfg, consts, t + 1) <= bkt_slack(cfg, consts) * (1 + 1e-12)
    one = replace(cfg, num_clients=8, clients_per_round=1)
    eight = replace(one, clients_per_round=8)
    assert bkt_slack(one, consts, t) == pytest.approx(8 * bkt_slack(eight, consts, t))


@pytest.mark.parametrize("name", ["pseudo_huber", "welsch", "logistic"])
def test_forgetting_stays_below_its_bound_in_every_run(name):
    problem = make_problem(name, shift=3.0)
    anchor = minimise(problem, [1], np.zeros(10), steps=20)
    cfg = RoundConfig(8, 4, 5, 50, 2, server_lr=0.5, client_lr=0.1, lam=0.25)

    def lost(theta):
        return problem.task_loss(1, theta) - problem.task_loss(1, anchor)

    trace = simulate(problem, cfg, anchor=anchor, replicates=10, measure=lost)
    slope = float(np.linalg.norm(problem.task_gradient(1, anchor)))
    caps = [[forgetting_cap(slope, r, 1, problem.smoothness) for r in row] for row in trace.drift]
    assert (trace.measured[1:] <= np.array(caps) + 1e-12).all()


def test_chained_bounds_hold_over_several_tasks():
    problem = make_problem("pseudo_huber", num_tasks=4, shift=2.0)
    cfg = RoundConfig(8, 4, 5, 40, 1, server_lr=0.5, client_lr=0.1, lam=0.3)
    traces = simulate_tasks(problem, cfg, theta=np.zeros(10))
    ends = [trace.theta[0] for trace in traces]
    radii = [float(trace.drift[-1, 0]) for trace in traces]
    norms = [float(np.linalg.norm(problem.task_gradient(i + 1, end))) for i, end in enumerate(ends)]
    for task in range(3):
        rise = problem.task_loss(task + 1, ends[-1]) - problem.task_loss(task + 1, ends[task])
        assert rise <= chained_forgetting_cap(norms[task], radii[task + 1 :], 1.0)
    old = sum(problem.task_gradient(task, ends[2]) for task in (1, 2, 3))
    assert np.linalg.norm(old) <= old_grad_norm_upper(norms[:3], radii[:3], 1.0)


def test_bkt_slack_is_twice_the_true_increase_where_noise_dominates():
    """F = ‖theta‖^2 L/2 near its optimum, pure noise from the new task: the increase is L/2 E‖d‖^2."""
    cfg = RoundConfig(8, 2, 3, 60, 2, server_lr=0.5, client_lr=0.1, lam=0.2)
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((4000, cfg.rounds, cfg.clients_per_round, cfg.local_steps, 3)) / np.sqrt(3)
    deltas = -cfg.client_lr * steps.sum(axis=3).mean(axis=2)
    theta = np.zeros((4000, 3))
    for t in range(cfg.rounds):
        theta = (theta + cfg.server_lr * deltas[:, t]) / (1 + cfg.lam)
    rise = 0.5 * (theta**2).sum(axis=1).mean()
    consts = Constants(10.0, 1.0, sigma_local=1.0)
    assert bkt_slack(cfg, consts, cfg.rounds) / rise == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("statement", ["paper_bkt", "bkt"])
def test_theorem_1_and_bkt_s_hold_on_an_aligned_problem_at_their_largest_steps(statement):
    """Two tasks with distant optima in the same direction, so that all gradients are aligned with the old one."""
    centers = np.zeros((2, 6, 5))
    centers[..., 0] = 50.0
    centers[..., 1:] = np.random.default_rng(3).standard_normal((2, 6, 4))
    problem = RadialFDIL(centers, noise=0.5)
    old = float(np.linalg.norm(problem.task_gradient(1, np.zeros(5))))
    consts = replace(problem.constants(), alignment=0.9, old_grad_norm=old)
    base = RoundConfig(6, 3, 4, 30, 2, server_lr=0.5, client_lr=1.0, lam=0.25)
    cfg = replace(base, client_lr=check_conditions(base, consts, statement).suggest()["client_lr"] * (1 - 1e-9))
    assert check_conditions(cfg, consts, statement).ok is True

    def risen(theta):
        return problem.task_loss(1, theta) - problem.task_loss(1, np.zeros(5))

    trace = simulate(problem, cfg, anchor=np.zeros(5), replicates=50, measure=risen)
    slack = paper_bkt_slack(cfg, consts) if statement == "paper_bkt" else bkt_slack(cfg, consts, cfg.rounds)
    assert trace.measured[-1].mean() <= slack
    cosines = [alignment(problem.task_gradient(1, np.zeros(5)), [problem.task_gradient(2, point)])
               for point in trace.theta]  # fmt: skip
    assert min(c.value for c in cosines) >= 0.9
