"""SPECIAL as SGD on the surrogate objective, and Theorem S on simulated runs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_fixtures import CFG, CONSTS, configs, constants, law

from fedspecial.theory import (
    RoundConfig,
    contraction_factor,
    lam_for_mu,
    quadratic_stationary,
    surrogate,
    surrogate_bound,
    task_uniform_bound,
)
from fedspecial.theory.simulation.problems import RadialFDIL, make_problem
from fedspecial.theory.simulation.simulator import minimise, simulate


@law
@given(configs(), constants())
def test_theorem_s_with_lam_zero_is_the_fedavg_bound(cfg, consts):
    free = replace(cfg, lam=0.0)
    terms, pseudo = surrogate_bound(free, consts), free.pseudo_step
    assert terms.optimisation == pytest.approx(2 * consts.gap / (pseudo * cfg.rounds))
    D = (cfg.client_lr * consts.grad_bound) ** 2 * (cfg.local_steps - 1) * (2 * cfg.local_steps - 1) / 6
    N, s, L = cfg.clients_per_round, cfg.sampling_factor, consts.smoothness
    V = 2 * consts.sigma_local**2 / (N * cfg.local_steps) + 4 * s * (consts.sigma_client**2 + L**2 * D)
    assert terms.variance == pytest.approx(pseudo * L * (V + 2 * L**2 * D / N))
    assert surrogate_bound(replace(cfg, anchored=False), consts) == terms


@law
@given(configs(), constants())
def test_zero_staleness_gives_the_synchronous_bound(cfg, consts):
    assert surrogate_bound(cfg, consts, staleness=0) == surrogate_bound(cfg, consts)


@law
@given(configs(), constants(), st.integers(1, 100))
def test_the_bound_grows_with_staleness_up_to_a_limit_set_by_the_anchor(cfg, consts, age):
    now, late = surrogate_bound(cfg, consts, age).total, surrogate_bound(cfg, consts, age + 1).total
    endless = surrogate_bound(cfg, consts, math.inf).total
    assert surrogate_bound(cfg, consts).total <= now <= late <= endless < math.inf


def test_infinite_staleness_needs_an_anchor():
    with pytest.raises(ValueError, match="staleness"):
        surrogate_bound(replace(CFG, lam=0.0), CONSTS, math.inf)


@law
@given(configs())
def test_lam_for_mu_inverts_mu(cfg):
    assert lam_for_mu(surrogate(cfg).mu, cfg) == pytest.approx(cfg.lam)


def test_the_noise_free_limit_minimises_the_surrogate_not_equation_3():
    problem = make_problem("pseudo_huber", spread=0.5, noise=0.0)
    anchor = minimise(problem, [1], np.zeros(10))
    cfg = RoundConfig(8, 8, 1, 3000, 2, server_lr=0.5, client_lr=0.2, lam=0.05)
    end = simulate(problem, cfg, anchor=anchor).theta[0]
    gradient, mu = problem.task_gradient(2, end), surrogate(cfg).mu
    assert np.linalg.norm(gradient + mu * (end - anchor)) < 1e-9
    assert np.linalg.norm(gradient + 2 * cfg.lam * (end - anchor)) > 0.1


@pytest.mark.parametrize("name", ["pseudo_huber", "welsch", "logistic"])
@pytest.mark.parametrize("lam", [0.0, 0.02, 0.3])
def test_theorem_s_holds_on_runs(name, lam):
    problem = make_problem(name, shift=2.0, seed=5)
    anchor = minimise(problem, [1], np.zeros(10), steps=200)
    cfg = RoundConfig(8, 3, 4, 80, 2, server_lr=0.5, client_lr=0.05, lam=lam)
    mu = surrogate(cfg).mu

    def stationarity(theta):
        return ((problem.task_gradient(2, theta) + mu * (theta - anchor)) ** 2).sum(axis=-1)

    trace = simulate(problem, cfg, anchor=anchor, replicates=10, measure=stationarity)
    consts = replace(problem.constants(), gap=float(problem.task_loss(2, anchor)))
    assert trace.measured[:-1].mean() <= surrogate_bound(cfg, consts).total


@pytest.mark.parametrize("convex", [True, False])
def test_the_gradient_of_all_tasks_is_at_most_the_surrogates_plus_the_anchor_mismatch(convex):
    name = "pseudo_huber" if convex else "welsch"
    problem = make_problem(name, num_tasks=3, shift=2.0)
    anchor = minimise(problem, [1, 2], np.zeros(10), steps=50)
    cfg = RoundConfig(8, 4, 5, 60, 3, server_lr=0.3, client_lr=0.05, lam=0.1)
    end = simulate(problem, cfg, anchor=anchor).theta[0]
    old = float(np.linalg.norm(problem.task_gradient(1, anchor) + problem.task_gradient(2, anchor)))
    new = problem.task_gradient(3, end) + surrogate(cfg).mu * (end - anchor)
    total = np.linalg.norm(sum(problem.task_gradient(task, end) for task in (1, 2, 3)))
    consts = replace(problem.constants(), old_grad_norm=old)
    radius = float(np.linalg.norm(end - anchor))
    assert total <= task_uniform_bound(float(np.linalg.norm(new)), cfg, consts, radius, convex=convex)


@pytest.mark.parametrize("lam", [0.0, 0.25])
def test_the_simulation_has_the_stationary_mean_and_variance_of_the_closed_form(lam):
    centers = np.random.default_rng(1).standard_normal((1, 6, 4))
    problem = RadialFDIL(centers, "quadratic", noise=0.7)
    cfg = RoundConfig(6, 2, 4, 60, 1, server_lr=0.8, client_lr=0.1, lam=lam)
    anchor = np.ones(4)
    mean, variance = quadratic_stationary(cfg, centers[0], anchor, 0.7)
    theta = simulate(problem, cfg, anchor=anchor, replicates=4000, seed=2).theta
    assert ((theta - mean) ** 2).sum(axis=1).mean() == pytest.approx(variance, rel=0.03)
    assert np.linalg.norm(theta.mean(axis=0) - mean) < 4 * math.sqrt(variance / 4000)


def test_a_contraction_shrinks_the_distance_between_any_two_starts():
    problem = make_problem("welsch", spread=0.5, noise=0.0)
    cfg = RoundConfig(8, 8, 3, 1, 2, server_lr=0.5, client_lr=0.1, lam=0.4)
    factor = contraction_factor(cfg, problem.smoothness)
    assert factor < 1
    rng = np.random.default_rng(0)
    starts = rng.standard_normal((20, 10))
    ends = np.stack([simulate(problem, replace(cfg, anchored=False), anchor=s).theta[0] for s in starts]) / 1.4
    gaps = [np.linalg.norm(ends[i] - ends[j]) / np.linalg.norm(starts[i] - starts[j])
            for i in range(20) for j in range(i)]  # fmt: skip
    assert max(gaps) <= factor


def test_contraction_factor_overflows_to_infinity():
    assert contraction_factor(replace(CFG, local_steps=10**6, client_lr=1.0), 100.0) == math.inf
