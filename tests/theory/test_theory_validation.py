"""Invalid input is rejected with the name of the argument and its value."""

import math
from dataclasses import replace

import numpy as np
import pytest
from theory_fixtures import CFG, CONSTS

from fedspecial import theory
from fedspecial.theory.inputs import read_inputs
from fedspecial.theory.simulation import problems, rate_studies, simulator

FIRST = replace(CFG, task_index=1)

REFUSED = {
    "clients_per_round": (lambda: replace(CFG, clients_per_round=9), "9"),
    "lam": (lambda: replace(CFG, lam=-0.1), "-0.1"),
    "client_lr": (lambda: replace(CFG, client_lr=math.nan), "nan"),
    "server_lr": (lambda: replace(CFG, server_lr=0.0), "0.0"),
    "local_steps": (lambda: replace(CFG, local_steps=0), "0"),
    "rounds": (lambda: replace(CFG, rounds=2.5), "2.5"),
    "num_clients": (lambda: replace(CFG, num_clients=True), "True"),
    "grad_bound": (lambda: replace(CONSTS, grad_bound=0.0), "0.0"),
    "smoothness": (lambda: replace(CONSTS, smoothness=math.inf), "inf"),
    "sigma_local": (lambda: replace(CONSTS, sigma_local=-1.0), "-1.0"),
    "alignment": (lambda: replace(CONSTS, alignment=1.5), "1.5"),
    "gap": (lambda: replace(CONSTS, gap="much"), "much"),
    "t": (lambda: theory.drift_radius(CFG, 1.0, t=-1), "-1"),
    "delta_norms": (lambda: theory.drift_radius_from_deltas(1.0, [1.0, math.nan], 0.1), "nan"),
    "radius": (lambda: theory.lam_for_radius(0.5, 1.0, 0.0), "0.0"),
    "budget": (lambda: theory.budget_lam(1.0, 1.0, 0.0), "0.0"),
    "batch_size": (lambda: theory.local_steps(10, 32, 5, drop_last=True), "32"),
    "epochs": (lambda: theory.local_steps(10, 32, 0), "0"),
    "which": (lambda: theory.check_conditions(CFG, CONSTS, "bkt2"), "bkt2"),
    "form": (lambda: theory.sigma_task_bound(1.0, 0.5, form="loose"), "loose"),
    "centers": (lambda: theory.quadratic_stationary(CFG, np.zeros((3, 2)), np.zeros(2), 1.0), r"\(3, 2\)"),
    "theta": (lambda: theory.DriftMonitor([0.0, 0.0], CFG).observe([0.0], 1.0), "1"),
    "anchored": (lambda: theory.paper_psi(replace(CFG, anchored=False), CONSTS), "False"),
    "sweep": (lambda: rate_studies.rate_study("lambda"), "lambda"),
    "values": (lambda: rate_studies.rate_study("lam", [1.0]), "1.0"),
    "problem": (lambda: problems.make_problem("cubic"), "cubic"),
    "num_clients of a problem": (
        lambda: simulator.simulate(problems.make_problem("welsch", num_clients=3), CFG, anchor=np.zeros(10)), "8"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_rejected_with_its_name_and_value(name):
    call, value = REFUSED[name]
    with pytest.raises(ValueError, match=rf"^{name.split()[0]} .*{value}"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.bkt_slack(FIRST, CONSTS),
        lambda: theory.bkt_step_max(FIRST, CONSTS),
        lambda: theory.paper_bkt_slack(FIRST, CONSTS),
        lambda: theory.paper_bkt_server_lr_max(FIRST),
        lambda: theory.paper_psi(FIRST, CONSTS),
        lambda: theory.paper_convergence_bound(FIRST, CONSTS),
        lambda: theory.every_iterate_cap(FIRST, CONSTS),
        lambda: theory.lam_for_bkt(FIRST, CONSTS),
        lambda: theory.task_uniform_bound(1.0, FIRST, CONSTS, 1.0),
        lambda: theory.paper_rate_steps(FIRST, 1.0),
    ],
)
def test_statements_about_earlier_tasks_reject_the_first_task(call):
    with pytest.raises(ValueError, match=r"task_index must be at least 2 .* got 1"):
        call()


def test_numpy_numbers_are_accepted():
    cfg = replace(CFG, local_steps=np.int64(5), lam=np.float64(0.25))
    assert theory.drift_radius(cfg, np.float32(2.0)) == pytest.approx(0.01)


@pytest.mark.parametrize(("epochs", "steps"), [(0.07, 7), (0.071, 8), (0.5, 50), (5, 500)])
def test_a_fraction_of_an_epoch_makes_as_many_steps_as_in_training(epochs: float, steps: int) -> None:
    """A hundred batches in an epoch. Computed in binary, 0.07 · 100 is a little more than 7."""
    given = {"local_epochs": epochs, "samples_per_client": 3200, "batch_size": 32}
    assert read_inputs(given).cfg.local_steps == steps
