"""The paper's statements as printed, with the counterexamples behind our verdicts."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_fixtures import CFG, CONSTS, configs, constants, law

from fedspecial.theory import (
    Constants,
    RoundConfig,
    check_conditions,
    drift_radius,
    every_iterate_cap,
    paper_c12,
    paper_psi,
    paper_rate_radius,
    paper_rate_steps,
    sigma_task_bound,
)
from fedspecial.theory.simulation.problems import make_problem
from fedspecial.theory.simulation.rate_studies import rate_study
from fedspecial.theory.simulation.simulator import minimise, simulate


@settings(law, max_examples=300)
@given(configs(min_task=2, server_lr_rule=True), constants())
def test_psi_exceeds_the_bound_of_every_iterate(cfg, consts):
    assert paper_psi(cfg, consts).total >= every_iterate_cap(cfg, consts)


@law
@given(configs(min_task=2, server_lr_rule=True), constants())
def test_psi_is_at_least_eight_times_the_squared_gradient_bound(cfg, consts):
    assert paper_psi(cfg, consts).total >= 8 * consts.grad_bound**2 * (1 - 1e-12)


@law
@given(configs(min_task=2), constants())
def test_psi_has_no_sampling_terms_when_all_clients_take_part(cfg, consts):
    full = replace(cfg, clients_per_round=cfg.num_clients)
    assert paper_psi(full, consts).sampling == 0
    terms = paper_psi(cfg, consts)
    noise = terms.local_noise * (1 - cfg.clients_per_round / cfg.num_clients)  # falls like 1/N by itself
    assert terms.total == pytest.approx(paper_psi(full, consts).total + terms.sampling + noise)


@dataclass(frozen=True)
class Ascent:
    """The same problem with clients that do gradient ascent."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def gradient(self, *arguments: Any) -> Any:
        return -self.inner.gradient(*arguments)


@pytest.mark.parametrize("wrap", [lambda problem: problem, Ascent])
def test_theorem_2_also_holds_for_clients_that_do_gradient_ascent(wrap):
    problem = make_problem("pseudo_huber", num_tasks=3, shift=3.0)
    anchor = minimise(problem, [1, 2], np.zeros(10))
    cfg = RoundConfig(8, 4, 5, 100, 3, server_lr=0.5, client_lr=0.025, lam=0.25)
    old = np.linalg.norm(problem.task_gradient(1, anchor) + problem.task_gradient(2, anchor))
    consts = replace(problem.constants(), old_grad_norm=float(old))

    def joint(theta):
        return (sum(problem.task_gradient(task, theta) for task in (1, 2, 3)) ** 2).sum(axis=-1)

    trace = simulate(wrap(problem), cfg, anchor=anchor, replicates=8, measure=joint)
    assert trace.measured.max() <= every_iterate_cap(cfg, consts) < paper_psi(cfg, consts).total


@law
@given(configs(min_task=2), constants())
def test_the_unstated_condition_fails_at_the_largest_client_step_of_theorem_2(cfg, consts):
    largest = replace(cfg, client_lr=1 / (8 * cfg.local_steps * consts.smoothness))
    assert paper_c12(largest, consts) > 0.5


@law
@given(configs(min_task=2), constants(), st.floats(0.01, 1))
def test_the_sufficient_steps_imply_the_unstated_condition(cfg, consts, share):
    E, K, L, s = cfg.local_steps, cfg.task_index, consts.smoothness, cfg.sampling_factor
    client = share / (E * L * (60 * K if s == 0 else 120 * K) ** 0.5)
    server = cfg.server_lr if s == 0 else min(cfg.server_lr, (1 + cfg.lam) / (60 * s * E * K * L) / client)
    assert paper_c12(replace(cfg, client_lr=client, server_lr=server), consts) <= 0.5 * (1 + 1e-12)


@law
@given(configs(min_task=2), constants())
def test_corollary_1_keeps_the_model_at_the_anchor_by_the_papers_own_lemma(cfg, consts):
    def radius(rounds):
        there = replace(cfg, rounds=rounds)
        server, client = paper_rate_steps(there, consts.smoothness)
        assert paper_rate_radius(there, consts) == pytest.approx(
            drift_radius(replace(there, server_lr=server, client_lr=client), consts.grad_bound)
        )
        return paper_rate_radius(there, consts)

    assert radius(10_000) == pytest.approx(radius(100) / 10)


def test_the_rate_of_corollary_1_is_not_observed():
    study = rate_study("rate", (256, 1024, 4096), repeats=2)
    assert study.settings["conditions_of_theorem_2_met"] is True
    assert abs(study.slope) < 0.05
    assert check_conditions(CFG, CONSTS, "paper_rate").ok is False


@law
@given(st.integers(0, 10**6), st.integers(2, 7), st.data())
def test_sampling_identity_by_enumeration(seed, clients, data):
    """E_S‖mean_S t‖^2 = ‖tbar‖^2 + s (1/M) sum‖t_m - tbar‖^2, which is larger than in the printed Lemma 3.7."""
    chosen = data.draw(st.integers(1, clients))
    t = np.random.default_rng(seed).standard_normal((clients, 3))
    exact = np.mean([(t[list(s)].mean(axis=0) ** 2).sum() for s in itertools.combinations(range(clients), chosen)])
    factor = RoundConfig(clients, chosen, 1, 1, 1, 1.0, 1.0, 0.0).sampling_factor
    mean = t.mean(axis=0)
    spread = ((t - mean) ** 2).sum(axis=1).mean()
    assert exact == pytest.approx((mean**2).sum() + factor * spread, rel=1e-12)


def test_zero_mean_is_not_enough_for_variances_to_add():
    """Lemma 3.4 as stated fails for x1 = x2, which have mean zero and a ratio of 2."""
    signs = np.array([-1.0, 1.0])
    assert ((signs + signs) ** 2).mean() == 2 * ((signs**2).mean() + (signs**2).mean())


@law
@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_sharp_form_bounds_the_task_difference_and_is_at_most_the_printed_form(eps, a, b):
    sharp, printed = sigma_task_bound(1.0, eps), sigma_task_bound(1.0, eps, form="paper")
    assert a**2 + b**2 - 2 * eps * a * b <= sharp**2 + 1e-12
    assert sharp <= printed * (1 + 1e-12)


def test_missing_constants_are_named_and_not_guessed():
    with pytest.raises(ValueError, match="sigma_local is needed"):
        paper_psi(CFG, Constants(2.0, 4.0))
