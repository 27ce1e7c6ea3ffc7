"""The studies measure the slopes that the theory supports, and their problems have the stated constants."""

import numpy as np
import pytest

from fedspecial.theory.certificates.task import certify
from fedspecial.theory.plots import plot_drift, plot_study
from fedspecial.theory.simulation.curves import log_slope
from fedspecial.theory.simulation.problems import make_problem
from fedspecial.theory.simulation.rate_studies import SWEEPS, rate_study


def test_drift_falls_like_one_over_lam_and_the_sum_of_losses_has_a_minimum():
    study = rate_study("lam", repeats=4)
    assert study.slope == pytest.approx(-1, abs=0.03)
    curves = {curve.name: [point.value for point in curve.points] for curve in study.curves}
    assert (np.diff(curves["forgetting"]) < 0).all()
    assert (np.diff(curves["new-task loss"]) > 0).all()
    lowest = int(np.argmin(curves["forgetting + new-task loss"]))
    assert 0 < lowest < len(study.points) - 1
    assert all(d <= cap for d, cap in zip(curves["drift"], curves["drift cap"], strict=True))


def test_surrogate_gradient_falls_like_the_root_of_rounds_and_drift_shrinks_at_fixed_lam():
    study = rate_study("rounds", (64, 256, 1024), repeats=4)
    assert study.slope == pytest.approx(-0.5, abs=0.08)
    slopes = {curve.name: curve.slope for curve in study.curves}
    assert slopes["drift, mu fixed"] == pytest.approx(0, abs=0.05)
    assert slopes["drift, lam fixed"] < -0.35


def test_stationary_variance_follows_the_closed_form_in_clients():
    study = rate_study("clients", (1, 4, 16), repeats=1500)
    assert study.slope == pytest.approx(-1, abs=0.05)
    for curve in study.curves:
        for point, exact in zip(curve.points, curve.exact, strict=True):
            assert point.value == pytest.approx(exact, rel=0.1)
    assert [point.x for point in study.curves[1].points] == [1, 4]  # no variance is left when all clients take part


def test_drift_bound_grows_and_mu_falls_with_local_steps():
    study = rate_study("epochs", (1, 4, 16), repeats=4)
    slopes = {curve.name: curve.slope for curve in study.curves}
    assert slopes["drift cap"] == pytest.approx(1)
    assert slopes["mu"] == pytest.approx(-1)
    assert slopes["drift"] == pytest.approx(1, abs=0.05)


def test_progress_ends_at_the_total():
    seen = []
    rate_study("epochs", (1, 2, 4), repeats=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_the_same_seed_gives_the_same_study():
    assert rate_study("epochs", (1, 2, 4), repeats=2) == rate_study("epochs", (1, 2, 4), repeats=2)


def test_log_slope_is_exact_on_a_power_law():
    slope, error = log_slope([1, 2, 4, 8], [3, 12, 48, 192])
    assert slope == pytest.approx(2)
    assert error == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ["pseudo_huber", "welsch", "logistic"])
def test_stated_constants_bound_the_observed_values(name):
    problem, rng = make_problem(name, num_tasks=3), np.random.default_rng(1)
    consts = problem.constants()
    theta = 5 * rng.standard_normal((400, 10))
    clients = rng.integers(8, size=400)
    assert np.linalg.norm(problem.gradient(2, clients, theta, rng), axis=1).max() <= consts.grad_bound * (1 + 1e-12)
    exact = np.array([[problem.task_gradient(task, point) for point in theta] for task in (1, 2, 3)])
    assert np.linalg.norm(exact[:, None] - exact[None], axis=-1).max() <= consts.sigma_task
    move = np.linalg.norm(np.diff(theta, axis=0), axis=1)
    assert (np.linalg.norm(np.diff(exact[0], axis=0), axis=1) <= consts.smoothness * move * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", ["pseudo_huber", "welsch", "quadratic", "logistic"])
def test_gradients_are_the_derivatives_of_the_losses(name):
    problem, rng = make_problem(name), np.random.default_rng(2)
    theta, direction = rng.standard_normal((2, 10))
    h = 1e-5
    rise = (problem.task_loss(1, theta + h * direction) - problem.task_loss(1, theta - h * direction)) / (2 * h)
    assert rise == pytest.approx(float(problem.task_gradient(1, theta) @ direction), rel=1e-6)


@pytest.mark.usefixtures("drawn_figures")
@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_study_can_be_plotted(sweep, tmp_path):
    values = (0.3, 1.0, 3.0) if sweep == "lam" else (1, 2, 4)
    file = plot_study(rate_study(sweep, values, repeats=2), tmp_path / "new" / "plot.png")
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("drawn_figures")
def test_drift_and_its_bounds_can_be_plotted(tmp_path):
    log = [{"event": "round", "task": 2, "round": t, "server_lr": 1.0, "lam": 1.0, "delta_norm": 1.0,
            "drift": 0.5, "num_accepted": 4} for t in range(3)]  # fmt: skip
    assert plot_drift(certify(log), tmp_path / "drift.png").exists()
    with pytest.raises(ValueError, match="anchored"):
        plot_drift([], tmp_path / "none.png")
