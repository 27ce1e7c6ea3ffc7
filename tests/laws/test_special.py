"""Laws of SPECIAL and SPECIAL-C that hold for any data and any model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedspecial.core.messages import ServerState
from fedspecial.methods.base import Method, RoundInfo
from fedspecial.methods.special import Special
from fedspecial.theory import special_c_drift_radius, special_c_literal_drift_radius
from toy_problems import Scalar, begin, learn, play, points

INFO = RoundInfo(task=2, round=0, server_lr=0.5, client_lr=0.1, mean_steps=5)
vectors = st.integers(0, 2**32 - 1).map(lambda seed: torch.randn(7, generator=torch.Generator().manual_seed(seed)))
strengths = st.floats(1e-3, 1e3)


def server_step(theta: Tensor, delta: Tensor, anchor: Tensor, **hyper: Any) -> Tensor:
    server = ServerState(theta.clone(), anchor)
    Special(**hyper).server_step(server, {"theta": delta}, INFO)
    return server.theta


@given(vectors, vectors, vectors, strengths)
def test_the_step_is_the_minimiser_of_its_objective(theta: Tensor, delta: Tensor, anchor: Tensor, lam: float) -> None:
    """‖u − θ̄‖² + λ‖u − a‖² has zero gradient at the new model."""
    bar = theta + INFO.server_lr * delta
    u = server_step(theta, delta, anchor, lam=lam)
    gradient = (u - bar) + lam * (u - anchor)
    assert float(gradient.norm()) <= 1e-5 * (1 + lam) * (1 + float(bar.norm() + anchor.norm()))


@given(vectors, vectors, vectors, strengths)
def test_the_distance_to_the_anchor_shrinks_by_one_plus_lambda(
    theta: Tensor, delta: Tensor, anchor: Tensor, lam: float
) -> None:
    bar = theta + INFO.server_lr * delta
    distance = float((server_step(theta, delta, anchor, lam=lam) - anchor).norm())
    assert distance == pytest.approx(float((bar - anchor).norm()) / (1 + lam), rel=1e-4, abs=1e-5)


@given(vectors, vectors, vectors)
def test_an_infinite_lambda_keeps_the_model_at_the_anchor(theta: Tensor, delta: Tensor, anchor: Tensor) -> None:
    assert torch.allclose(server_step(theta, delta, anchor, lam=1e30), anchor)


@given(vectors, vectors, vectors, st.floats(0.01, 100))
def test_mu_gives_the_lambda_of_its_definition(theta: Tensor, delta: Tensor, anchor: Tensor, mu: float) -> None:
    lam = mu * INFO.server_lr * INFO.client_lr * INFO.mean_steps
    assert torch.equal(server_step(theta, delta, anchor, mu=mu), server_step(theta, delta, anchor, lam=lam))


@pytest.mark.parametrize("hyper", [{"lam": 0.3}, {"mu": 2.0}])
def test_the_model_is_the_anchor_plus_discounted_updates(hyper: dict[str, float], tmp_path: Path) -> None:
    """θ^t − a = Σ_τ (Π_{s=τ..t} 1/(1+λ_s)) γ_G Δ_τ, and ‖θ^t − a‖ ≤ max_τ ‖γ_G Δ_τ‖/λ_τ."""
    run = begin(tmp_path / "run", "special", rounds=5, **hyper)
    means: list[tuple[int, Tensor, float]] = []
    step = Special.server_step
    total: dict[int, Tensor] = {}
    caps: dict[int, float] = {}

    def checked_step(self: Special, server: ServerState, mean: Any, info: RoundInfo) -> Any:
        report = step(self, server, mean, info)
        if info.task > 1:
            lam, scaled = report.lam, info.server_lr * mean["theta"].double()
            total[info.task] = (total.get(info.task, 0) + scaled) / (1 + lam)
            caps[info.task] = max(caps.get(info.task, 0.0), float(scaled.norm()) / lam)
            drift = server.theta.double() - server.anchor.double()
            assert torch.allclose(drift, total[info.task], atol=1e-6)
            assert float(drift.norm()) <= caps[info.task] * (1 + 1e-5)
            means.append((info.task, scaled, lam))
        return report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Special, "server_step", checked_step)
        play(run)
    assert len(means) == 2 * 5
    if "mu" in hyper:
        assert len({lam for _, _, lam in means}) > 1, "λ follows the round's rates and steps"


@pytest.mark.parametrize("name", ["special", "special-c"])
def test_the_first_task_is_fedavg(name: str, tmp_path: Path) -> None:
    ours, fedavg = learn(tmp_path / "ours", name, lam=5.0), learn(tmp_path / "fedavg")
    assert ours.matrix[0] == fedavg.matrix[0]
    assert ours.model_sha256 != fedavg.model_sha256


def test_a_tiny_lambda_is_close_to_lambda_zero(tmp_path: Path) -> None:
    tiny = play(begin(tmp_path / "tiny", "special", lam=1e-6)).vector
    none = play(begin(tmp_path / "none", "special", lam=0.0)).vector
    assert torch.allclose(tiny, none, atol=1e-4)
    assert not torch.equal(tiny, none)


def test_a_larger_lambda_gives_a_smaller_drift(tmp_path: Path) -> None:
    drifts = [learn(tmp_path / f"{lam}", "special", lam=lam).drift for lam in (0.1, 1.0, 10.0)]
    assert drifts == sorted(drifts, reverse=True)


@pytest.mark.parametrize(
    "length", [{"local_epochs": 1}, {"local_epochs": 0.5}, {"local_epochs": None, "local_steps": 1}]
)
def test_special_c_per_epoch_is_special_at_twice_lambda(length: dict[str, Any], tmp_path: Path) -> None:
    """One local pass over the data, complete or not, γ_G = 1, no BatchNorm: every client ends with one proximal step,
    and the mean of the proximal steps is the proximal step of the mean."""
    settings = {**length, "server_lr": 1.0}
    client = play(begin(tmp_path / "c", "special-c", lam=0.3, prox="epoch_literal", **settings)).vector
    server = play(begin(tmp_path / "s", "special", lam=0.6, **settings)).vector
    assert torch.allclose(client, server, atol=1e-6)


def test_special_c_with_half_lambda_equals_special(tmp_path: Path) -> None:
    settings = {"local_epochs": 1, "server_lr": 1.0, "lam": 0.3}
    client = play(begin(tmp_path / "c", "special-c", prox="epoch_literal", halve_lambda=True, **settings)).vector
    server = play(begin(tmp_path / "s", "special", **settings)).vector
    assert torch.allclose(client, server, atol=1e-6)


def test_step_scaled_is_the_penalty_up_to_the_square_of_the_rate(tmp_path: Path) -> None:
    """Halving γ_L quarters the difference after one step."""
    gaps = []
    for rate in (0.02, 0.01):
        ends = []
        for prox in ("step_scaled", "penalty"):
            settings = {
                "lam": 1.0,
                "prox": prox,
                "rounds": 1,
                "local_steps": 2,
                "local_epochs": None,
                "client_lr": rate,
            }
            ends.append(play(begin(tmp_path / f"{prox}-{rate}", "special-c", **settings)).vector)
        gaps.append(float((ends[0] - ends[1]).norm()))
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.35)


def test_special_sends_exactly_what_fedavg_sends(tmp_path: Path) -> None:
    ours, fedavg = learn(tmp_path / "ours", "special"), learn(tmp_path / "fedavg")
    assert (ours.bytes_up, ours.bytes_down) == (fedavg.bytes_up, fedavg.bytes_down)
    assert ours.client_memory_bytes == fedavg.client_memory_bytes


def test_special_c_downloads_the_anchor_once_per_task_and_client(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "special-c", clients=3, clients_per_round=3)
    down: list[tuple[int, int, int]] = []
    run.listeners = (lambda e: down.append((e.task, e.round, e.bytes_down)) if e.event == "round" else None,)
    play(run)
    bare = down[0][2]
    extra = {(task, round): size - bare for task, round, size in down}
    model = 4 * run.model.layout.size
    for (task, round), size in extra.items():
        if task > 1 and round == 0:
            assert 3 * model <= size <= 3 * (model + 200)
        else:
            assert size == 0


@pytest.mark.parametrize(
    ("prox", "radius"),
    [
        ("step_scaled", special_c_drift_radius(1.0, 0.5)),  # 1
        ("penalty", special_c_drift_radius(1.0, 0.5)),
        ("step_literal", special_c_literal_drift_radius(0.1, 1.0, 0.5)),  # 0.1
        ("epoch_literal", special_c_literal_drift_radius(0.1, 1.0, 0.5, steps_per_pull=4)),  # 0.4
    ],
)
def test_the_drift_of_special_c_comes_close_to_its_bound_and_stays_below(
    prox: str, radius: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss −w has the gradient −1 everywhere, so B = 1 and all steps have the same direction. γ_L = 0.1, λ = ½, and
    γ_G = ½ in the second task: a round of 20 steps leaves at most (1 + 1.1⁻²⁰)/2 = 0.57 of the gap to the bound."""
    monkeypatch.setattr(Method, "loss", lambda method, context, x, y: -context.model.module(x).mean())
    run = begin(
        tmp_path / "run", "special-c", points([0.0] * 8, [0.0] * 8), module=Scalar(), lam=0.5, prox=prox, clients=2,
        clients_per_round=2, partition="iid", batch_size=1, rounds=16, local_epochs=5, client_lr=0.1,
        client_lr_decay=1.0, eval_every=0, min_per_client=0,
    )  # fmt: skip
    drifts: list[float] = []
    run.listeners = (lambda event: drifts.append(event.drift) if event.event == "round" and event.task == 2 else None,)
    play(run)
    assert drifts == sorted(drifts)
    assert 0.99 * radius < drifts[-1] <= radius * (1 + 1e-5)
