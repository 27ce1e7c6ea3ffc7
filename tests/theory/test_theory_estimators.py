"""Each estimator is tested on a problem whose constant is known."""

import numpy as np
import pytest

from fedspecial.theory import estimators as est
from fedspecial.theory import flat_norm
from fedspecial.theory.simulation.problems import RadialFDIL, make_problem

RNG = np.random.default_rng(7)


def test_running_gradient_bound_is_the_largest_observed_and_a_lower_bound():
    found = est.grad_bound_running([0.1, 3.0, 2.0])
    assert (found.value, found.kind, found.n) == (3.0, "lower", 3)


def test_power_iteration_finds_the_curvature_of_a_logistic_loss_at_zero():
    problem = make_problem("logistic", num_tasks=1, num_clients=1)
    found = est.smoothness_power(lambda x: problem.task_gradient(1, x), np.zeros(10), iters=200)
    assert found.value == pytest.approx(problem.smoothness, rel=1e-3)
    assert found.kind == "lower"


def test_power_iteration_on_a_known_hessian():
    hessian = np.diag([1.0, -5.0, 2.0])
    assert est.smoothness_power(lambda x: hessian @ x, np.ones(3)).value == pytest.approx(5.0, rel=1e-6)


def test_secant_smoothness_never_exceeds_the_true_smoothness():
    problem = make_problem("welsch")
    points = RNG.standard_normal((50, 10))
    grads = problem.task_gradient(1, points)
    found = est.smoothness_secant(zip(np.diff(points, axis=0), np.diff(grads, axis=0), strict=True))
    assert 0 < found.value <= problem.smoothness


def test_two_batch_sigma_is_unbiased_in_the_square():
    problem = RadialFDIL(np.zeros((1, 1, 10)), noise=0.5)
    theta, clients = np.ones((4000, 10)), np.zeros(4000, dtype=np.int64)
    g1, g2 = (problem.gradient(1, clients, theta, RNG) for _ in range(2))
    assert est.sigma_local_two_batch(g1, g2).value == pytest.approx(0.5, rel=0.03)


def test_cross_product_sigma_excludes_the_batch_noise_that_the_naive_estimate_includes():
    centers = RNG.standard_normal((1, 20, 10)) * 0.2
    problem = RadialFDIL(centers, "quadratic", noise=2.0)
    true = np.sqrt(((centers[0] - centers[0].mean(axis=0)) ** 2).sum(axis=1).mean())
    clients, theta = np.arange(20), np.zeros((20, 10))
    squares, naive = [], []
    for _ in range(300):
        g1, g2 = (problem.gradient(1, clients, theta, RNG) for _ in range(2))
        squares.append(est.sigma_client_cross(g1, g2).value ** 2)
        naive.append(((g1 - g1.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert np.sqrt(np.mean(squares)) == pytest.approx(true, rel=0.15)
    assert np.sqrt(np.mean(naive)) > 2 * true


def test_sigma_task_is_the_largest_pairwise_difference():
    assert est.sigma_task([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]]).value == pytest.approx(5.0)


def test_alignment_is_the_smallest_cosine_and_skips_zero_gradients():
    found = est.alignment([1.0, 0.0], [[2.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert found.value == pytest.approx(np.sqrt(0.5))
    assert (found.kind, found.n) == ("upper", 2)
    assert "stored" in found.note


def test_hutchinson_curvature_is_the_mean_eigenvalue():
    hessian = np.diag([1.0, 2.0, 6.0])
    assert est.curvature_scalar(lambda x: hessian @ x, np.zeros(3)).value == pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: est.grad_bound_running([]),
        lambda: est.smoothness_secant([([0.0], [1.0])]),
        lambda: est.sigma_local_two_batch([[1.0]], []),
        lambda: est.sigma_client_cross([[1.0]], [[1.0]]),
        lambda: est.sigma_task([[1.0]]),
        lambda: est.alignment([0.0], [[1.0]]),
        lambda: est.grad_bound_running([float("nan")]),
    ],
)
def test_estimators_reject_unusable_input(call):
    with pytest.raises(ValueError, match="must"):
        call()


def test_flat_norm_accepts_arrays_tensors_and_containers():
    torch = pytest.importorskip("torch")
    weight = torch.tensor([[3.0]], requires_grad=True)
    assert flat_norm({"a": weight, "b": [np.array([4.0]), (0.0, 0.0)]}) == 5.0
    assert flat_norm([]) == 0.0
