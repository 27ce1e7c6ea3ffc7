"""Constants estimated during a run: estimating does not change the run, can be resumed, and is correct where known."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedspecial.core.events import EXECUTION_EVENTS, Event, RoundFinished, of_kind, read_events
from fedspecial.engine import estimate, loop
from fedspecial.runs.api import resume
from fedspecial.theory import estimators
from toy_problems import begin, images, learn, rotated_blobs

KINDS = {
    "sigma_local": "plugin",
    "sigma_client": "plugin",
    "smoothness": "plugin",
    "end_grad_norm": "plugin",
    "alignment": "upper",
}


def estimates_of(folder: Path) -> list[dict[str, Any]]:
    return of_kind(read_events(folder / "events.jsonl"), "estimates")


class Dropping(nn.Module):
    """Uses torch's global generator and BatchNorm; estimating must leave both unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("policy", ["average", "mean-only", "local"])
@pytest.mark.parametrize("method", ["special", "special-c", "fedavg"])
def test_the_model_is_the_same_with_and_without_estimates(tmp_path: Path, method: str, policy: str) -> None:
    torch.manual_seed(0)
    start = Dropping().state_dict()
    hashes, state = [], torch.get_rng_state()
    for on in (False, True):
        module = Dropping()
        module.load_state_dict(start)
        torch.set_rng_state(state)
        result = learn(tmp_path / str(on), method, model=module, batch_norm=policy, estimate=on)
        hashes.append((result.model_sha256, result.matrix, result.drift))
        assert torch.equal(torch.get_rng_state(), state)
    assert hashes[0] == hashes[1]


def test_every_round_and_every_task_has_an_event_with_its_estimates_and_their_kinds(tmp_path: Path) -> None:
    learn(tmp_path / "run", "special", lam=0.3, estimate=True)
    made = estimates_of(tmp_path / "run")
    assert [(e["task"], e["round"]) for e in made] == [(t, r) for t in (1, 2, 3) for r in (0, 1, 2, None)]
    for event in made:
        assert all(KINDS[name] == found["kind"] and found["n"] >= 1 for name, found in event["estimates"].items())
        if event["round"] is None:
            assert set(event["estimates"]) == {"smoothness", "end_grad_norm"}
        else:
            assert {"sigma_local", "sigma_client"} <= set(event["estimates"])
            assert ("alignment" in event["estimates"]) == (event["task"] > 1)
            assert ("smoothness" in event["estimates"]) == (event["task"] > 1 and event["round"] > 0)
    assert all(e["max_grad"] > 0 for e in of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round"))


def test_the_forgetting_cap_is_known_if_constants_are_estimated(tmp_path: Path) -> None:
    plain = learn(tmp_path / "plain", "special", lam=0.3).certificates or []
    watched = learn(tmp_path / "watched", "special", lam=0.3, estimate=True).certificates or []
    assert [task["forgetting_cap"] for task in plain] == [None] * 3
    for task in watched[1:]:
        assert task["status"] == "holds"
        constants = {name: found["value"] for name, found in task["constants"].items()}
        old, curvature, drift = constants["old_grad_norm"], constants["smoothness"], task["max_drift"]
        assert task["forgetting_cap"] == pytest.approx(old * drift + (task["task"] - 1) * curvature * drift**2 / 2)
        assert task["uniform_bound"] is not None
        assert task["constants"]["grad_bound"]["kind"] == "lower"


def test_a_batch_of_one_sample_gives_no_estimates_with_batch_norm(tmp_path: Path) -> None:
    """No client can train on it either."""
    settings = {"model": "cnn", "width": 4, "batch_size": 1, "estimate": True, "rounds": 1}
    learn(tmp_path / "run", "special", images(), **settings)
    assert [event["estimates"] for event in estimates_of(tmp_path / "run")] == [{}] * 4


class StopError(Exception):
    pass


@pytest.mark.parametrize("position", [(1, 1), (2, 0), (2, 2), (3, 1)])
def test_resumed_estimates_equal_uninterrupted_ones(tmp_path: Path, position: tuple[int, int]) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == position:
            raise StopError

    learn(tmp_path / "uninterrupted", "special", lam=0.3, estimate=True)
    with pytest.raises(StopError):
        learn(tmp_path / "stopped", "special", lam=0.3, estimate=True, listeners=[stop])
    resume(tmp_path / "stopped", benchmark=rotated_blobs())
    found, expected = (
        [
            without_times(event)
            for event in read_events(tmp_path / name / "events.jsonl")
            if event["event"] not in EXECUTION_EVENTS
        ]
        for name in ("stopped", "uninterrupted")
    )
    assert found == expected


def without_times(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if not key.startswith("seconds")}


def test_estimates_from_pairs_added_one_by_one_equal_those_of_the_theory_package() -> None:
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(4, 1, 50, generator=generator)
    pairs = centers + 0.3 * torch.randn(4, 2, 50, generator=generator)
    old = torch.randn(50, generator=generator)
    spread, cosines = estimate.GradientSpread(), estimate.Cosines(old)
    for one, two in pairs:
        spread.add(one, two)
        cosines.add(one + two)
    found = spread.estimates(4) | cosines.estimates()
    ours, theirs = [list(pairs[:, which].numpy()) for which in (0, 1)]
    assert found["sigma_local"].value == pytest.approx(estimators.sigma_local_two_batch(ours, theirs).value, rel=1e-5)
    assert found["sigma_client"].value == pytest.approx(estimators.sigma_client_cross(ours, theirs).value, rel=1e-4)
    sums = [a + b for a, b in zip(ours, theirs, strict=True)]
    assert found["alignment"].value == pytest.approx(estimators.alignment(old.numpy(), sums).value, rel=1e-5)


def test_a_sample_of_clients_gives_an_unbiased_gradient_spread() -> None:
    rng = np.random.default_rng(0)
    gradients = torch.from_numpy(rng.standard_normal((8, 30))).float()
    exact = float(((gradients - gradients.mean(0)) ** 2).sum(1).mean())
    squares = []
    for _ in range(2000):
        spread = estimate.GradientSpread()
        for client in rng.choice(8, 3, replace=False):
            spread.add(*(gradients[client] + 0.1 * torch.from_numpy(rng.standard_normal((2, 30))).float()))
        squares.append(spread.estimates(8)["sigma_client"].value ** 2)
    assert np.mean(squares) == pytest.approx(exact, rel=0.03)


def test_gradient_and_smoothness_of_logistic_regression_equal_the_exact_ones(tmp_path: Path) -> None:
    """Full batches: the estimates have no noise, so they can be compared with the formulas."""
    run = begin(tmp_path / "run", "special", model="logistic", width=None, batch_size=10_000, clients=4)
    with contextlib.closing(run.log):
        event = estimate.at_task_end(run, 1)
    samples, rows = run.federation.domain(1).train, [run.federation.rows(1, client) for client in range(4)]
    weights = run.vector.clone().requires_grad_()

    def loss(flat: torch.Tensor, client_rows: np.ndarray) -> torch.Tensor:
        logits = samples.x[client_rows] @ flat[:18].view(3, 6).T + flat[18:]
        return nn.functional.cross_entropy(logits, samples.y[client_rows])

    gradient = torch.autograd.grad(sum(loss(weights, client_rows) for client_rows in rows) / 4, weights)[0]  # type: ignore[arg-type]
    assert event.estimates["end_grad_norm"].value == pytest.approx(float(gradient.norm()), rel=1e-4)
    hessian = torch.autograd.functional.hessian(lambda flat: loss(flat, rows[0]), run.vector)
    largest = float(torch.linalg.eigvalsh(hessian)[-1])  # type: ignore[arg-type]
    assert 0.7 * largest <= event.estimates["smoothness"].value <= 1.01 * largest


def test_power_iteration_finds_the_largest_curvature_of_a_quadratic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(tmp_path / "run", "special")
    curvatures = torch.linspace(0.1, 3.0, run.model.layout.num_weights)
    curvatures[-1] = 7.0
    monkeypatch.setattr(estimate, "POWER_ITERATIONS", 60)
    with contextlib.closing(run.log):
        found = estimate.power_iteration(lambda point: curvatures * point, run.vector, estimate.Probe(run, 1, None))
    assert found.value == pytest.approx(7.0, rel=1e-3)


def test_frozen_weights_have_no_gradients(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    module[0].requires_grad_(False)
    run = begin(tmp_path / "run", "special", module=module)
    with contextlib.closing(run.log):
        probe = estimate.Probe(run, 1, 0)
        gradient = probe.gradient(run.vector, probe.batches(0, 1)[0])
    assert gradient.shape == (8 * 3 + 3,)
    assert gradient.any()


def test_a_model_that_diverged_has_no_constants(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "special", estimate=True)
    run.vector.fill_(float("nan"))
    with contextlib.closing(run.log):
        assert estimate.at_broadcast(run, 1, 0, [0, 1, 2]).estimates == {}
        assert estimate.at_task_end(run, 1).estimates == {}
    assert estimate.END_GRADIENT not in run.server.tensors


def test_a_client_without_samples_is_skipped(tmp_path: Path) -> None:
    settings = {
        "min_per_client": 0,
        "alpha": 0.05,
        "clients": 30,
        "clients_per_round": 12,
        "estimate": True,
        "lam": 0.3,
    }
    learn(tmp_path / "run", "special", images(rows=32), model="cnn", **settings)
    assert estimates_of(tmp_path / "run")


def test_a_run_without_estimates_has_no_trace_of_them(tmp_path: Path) -> None:
    """There is no event and no tensor on the server."""
    run = begin(tmp_path / "run", "special")
    with contextlib.closing(run.log):
        loop.learn(run)
    assert not estimates_of(tmp_path / "run")
    assert not any(name.startswith("estimate") for name in run.server.tensors)
    shutil.rmtree(tmp_path / "run")
