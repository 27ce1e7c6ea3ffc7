"""Values computed by hand, compared to 1e-12."""

from dataclasses import replace

import pytest
from theory_fixtures import CFG, CONSTS

from fedspecial import theory
from fedspecial.theory import geometric_limit, half_life, local_steps

FULL = replace(CFG, clients_per_round=8)
FEDAVG = replace(CFG, lam=0.0)

GOLDEN = {
    "drift radius": (lambda: theory.drift_radius(CFG, 2.0), 0.01),
    "drift radius after 3 rounds": (lambda: theory.drift_radius(CFG, 2.0, t=3), 0.00488),
    "drift radius with lam = 0 after 3 rounds": (lambda: theory.drift_radius(FEDAVG, 2.0, t=3), 0.0075),
    "paper client_lr": (lambda: theory.paper_bkt_client_lr_max(CFG, CONSTS, 20), 4.446952959611783e-05),
    "paper server_lr": (lambda: theory.paper_bkt_server_lr_max(CFG), 1 / 6),
    "paper slack": (lambda: theory.paper_bkt_slack(CFG, CONSTS, 20), 2.9296875e-07),
    "BKT-S step": (lambda: theory.bkt_step_max(CFG, CONSTS), 3.125e-4),
    "BKT-S slack": (lambda: theory.bkt_slack(CFG, CONSTS), 1 / 600000),
    "Psi": (lambda: theory.paper_psi(CFG, CONSTS).total, 43.42876411428572),
    "Psi, all clients take part": (lambda: theory.paper_psi(FULL, CONSTS).total, 43.1886),
    "first term of Theorem 2": (lambda: theory.paper_convergence_gap_term(CFG, CONSTS), 400.0),
    "Theorem 2": (lambda: theory.paper_convergence_bound(CFG, CONSTS), 443.42876411428572),
    "eta": (lambda: theory.surrogate(CFG).eta, 0.001),
    "mu": (lambda: theory.surrogate(CFG).mu, 200.0),
    "Theorem S": (lambda: theory.surrogate_bound(CFG, CONSTS).total, 300.13731136),
    "forgetting cap": (lambda: theory.forgetting_cap(0.3, 0.02, 3, 4.0), 0.0084),
    "radius for a budget": (lambda: theory.radius_for_budget(0.3, 3, 4.0, 0.01), 0.02287135538781691),
    "bound of every iterate": (lambda: theory.every_iterate_cap(CFG, CONSTS), 5.8564),
    "paper drift, squared": (lambda: theory.paper_drift_bound_sq(CFG, 2.0), 1e-4),
    "SPECIAL-C": (lambda: theory.special_c_drift_radius(2.0, 0.25), 4.0),
    "SPECIAL-C as printed": (lambda: theory.special_c_literal_drift_radius(0.001, 2.0, 0.25), 0.004),
    "sampling factor": (lambda: CFG.sampling_factor, 1 / 7),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_value(name):
    compute, expected = GOLDEN[name]
    assert compute() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("lam", "rounds"), [(0.05, 14.2), (0.1, 7.3), (0.25, 3.1), (0.4, 2.1)])
def test_half_lives_of_the_published_lambdas(lam, rounds):
    assert half_life(lam) == pytest.approx(rounds, abs=0.05)


def test_geometric_limit_by_hand():
    assert geometric_limit([1.0], [3.0], server_lr=0.5, lam=0.25)[0] == pytest.approx(7.0, rel=1e-12)
    assert geometric_limit([1.0], [3.0], server_lr=0.5, lam=0.25, t=1)[0] == pytest.approx(2.2, rel=1e-12)


def test_local_steps_counts_batches_not_epochs():
    assert local_steps(100, 32, 5) == 20
    assert local_steps(100, 32, 5, drop_last=True) == 15


def test_completed_constants_follow_from_the_gradient_bound():
    filled = theory.Constants(2.0, 1.0).completed(num_clients=8)
    assert (filled.sigma_local, filled.sigma_client, filled.sigma_task) == (2.0, 3.5, 4.0)
    assert theory.Constants(2.0, 1.0).completed().sigma_client == 4.0
