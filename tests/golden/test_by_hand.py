"""Two clients, two tasks, one weight: every number below was computed by hand.

f_m(w) = ½(w − x_m)², γ_L = ½, one step per round, so Δ_m = ½(x_m − w).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedspecial.core.events import read_events
from fedspecial.engine.run import Run
from fedspecial.methods.base import ClientContext, Method
from fedspecial.methods.fedprox import FedProx
from fedspecial.methods.special import Special
from fedspecial.methods.special_c import SpecialC
from toy_problems import Scalar, begin, play, points


def half_square(self: Method, context: ClientContext, x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (context.model.module(x) - x).square().mean()


@pytest.fixture(autouse=True)
def _quadratic_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Method, "loss", half_square)


def weights_of(folder: Path, method: Method, **settings: object) -> tuple[Run, list[float]]:
    """w after each round of: task 1 with x = (1, 3), task 2 with x = (−1, −3), two rounds each."""
    weights: list[float] = []
    run = begin(
        folder, "fedavg", points([1.0, 3.0], [-1.0, -3.0]), module=Scalar(), clients=2, clients_per_round=2,
        rounds=2, client_lr=0.5, client_lr_decay=1.0, eval_every=0, min_per_client=0, **{"local_epochs": 1, **settings},
    )  # fmt: skip
    run.method = run.engine.runner.method = method
    run.federation.rows = lambda task, client: np.array([client])  # type: ignore[method-assign]
    run.listeners = (lambda event: weights.append(float(run.vector[0])) if event.event == "round" else None,)
    return play(run), weights


def test_fedavg_takes_the_steps_computed_by_hand(tmp_path: Path) -> None:
    """1: 0 + mean(½, 3/2) = 1; 1 + mean(0, 1) = 3/2.  2, γ_G = ½: 3/2 − 7/8 = 5/8; 5/8 + ½·mean(−13/16, −29/16)."""
    _, weights = weights_of(tmp_path / "run", Method())
    assert weights == pytest.approx([1, 1.5, 0.625, 0.625 - 0.65625], abs=1e-7)


def test_special_takes_the_steps_computed_by_hand(tmp_path: Path) -> None:
    """Anchor 3/2, λ = ½: (5/8 + ½·3/2)/(3/2) = 11/12; then w̄ = 11/12 − 35/48 = 9/48, (9/48 + 3/4)/(3/2) = 5/8."""
    run, weights = weights_of(tmp_path / "run", Special(lam=0.5))
    assert weights == pytest.approx([1, 1.5, 11 / 12, 5 / 8], abs=1e-6)
    rounds = [e for e in read_events(tmp_path / "run" / "events.jsonl") if e["event"] == "round"]
    assert [r["drift"] for r in rounds] == [None, None, pytest.approx(7 / 12), pytest.approx(7 / 8)]
    assert [r["mu"] for r in rounds[2:]] == pytest.approx([2.0, 2.0])  # ½ / (½ · ½ · 1)
    assert float(run.server.anchor) == 1.5


def test_special_with_mu_equals_special_with_the_corresponding_lambda(tmp_path: Path) -> None:
    _, by_mu = weights_of(tmp_path / "mu", Special(mu=2.0))
    _, by_lam = weights_of(tmp_path / "lam", Special(lam=0.5))
    assert by_mu == pytest.approx(by_lam, abs=1e-7)


def test_special_can_anchor_the_first_task_too(tmp_path: Path) -> None:
    """Anchor 0, λ = ½: 1/(3/2) = 2/3; w̄ = 2/3 + mean(1/6, 7/6) = 4/3, /(3/2) = 8/9."""
    _, weights = weights_of(tmp_path / "run", Special(lam=0.5, anchor_first_task=True))
    assert weights[:2] == pytest.approx([2 / 3, 8 / 9], abs=1e-6)


def test_fedprox_with_one_step_per_round_is_fedavg(tmp_path: Path) -> None:
    """The first step of a round starts at the centre, so with one step per round it is FedAvg for every μ."""
    _, weights = weights_of(tmp_path / "run", FedProx(mu_prox=1.0))
    assert weights == pytest.approx([1, 1.5, 0.625, -0.03125], abs=1e-7)


def test_the_second_local_step_of_fedprox_has_the_proximal_term(tmp_path: Path) -> None:
    """x = 1, μ = 1: w₁ = ½; w₂ = ½ − ½(−½ + ½) = ½. x = 3: 3/2; 3/2 − ½(−3/2 + 3/2) = 3/2. Mean 1."""
    _, weights = weights_of(tmp_path / "run", FedProx(mu_prox=1.0), local_steps=2, local_epochs=None)
    assert weights[0] == pytest.approx(1.0, abs=1e-7)


def test_momentum_begins_anew_in_every_client_and_every_round(tmp_path: Path) -> None:
    """Momentum ½, two steps, so that x − w becomes 0: with e = w − x, steps are v = e, w − e/2; v = e/2 + e/2, w − e.

    Round 1 from 0: both clients end at their own x, 1 and 3, whose mean is 2. Round 2 from 2: the same, so w stays 2.
    A velocity kept from another client or round, or a gradient damped by ½, would end elsewhere.
    """
    _, weights = weights_of(tmp_path / "run", Method(), momentum=0.5, local_steps=2, local_epochs=None)
    assert weights[:2] == pytest.approx([2.0, 2.0], abs=1e-6)


def test_weight_decay_pulls_towards_zero(tmp_path: Path) -> None:
    """Decay ½. From 0: as FedAvg, 1. From 1: gradients 0 + ½ and −2 + ½, steps −¼ and ¾, whose mean is ¼."""
    _, weights = weights_of(tmp_path / "run", Method(), weight_decay=0.5)
    assert weights[:2] == pytest.approx([1.0, 1.25], abs=1e-6)


@pytest.mark.parametrize(
    ("momentum", "after_one_round"),
    [
        (0.0, 1.0),  # w₁ = x/2; the gradient −x/2 and the pull x/2 cancel: w₂ = x/2
        (0.5, 1.5),  # v₁ = −x; v₂ = −x/2 + 0; w₂ = x/2 + x/4
    ],
)
def test_the_proximal_term_pulls_back_to_the_downloaded_model(
    momentum: float, after_one_round: float, tmp_path: Path
) -> None:
    """μ = 1, two steps from w = 0; the mean of x = 1 and 3 is 2."""
    settings = {"momentum": momentum, "local_steps": 2, "local_epochs": None}
    _, weights = weights_of(tmp_path / "run", FedProx(mu_prox=1.0), **settings)
    assert weights[0] == pytest.approx(after_one_round, abs=1e-6)


@pytest.mark.parametrize(
    ("prox", "after_one_round"),
    [
        # From w = 3/2 with anchor 3/2 and λ = ½: steps go to x = (1/4, −3/4), then θ = (x + k·a)/(1 + k); γ_G = ½.
        ("step_scaled", 1.5 + 0.5 * ((-0.25 + 0.75) / 1.5 - 1.5)),  # k = 2γ_Lλ = ½
        ("step_literal", 1.5 + 0.5 * ((-0.25 + 1.5) / 2 - 1.5)),  # k = 2λ = 1
        ("epoch_literal", 1.5 + 0.5 * ((-0.25 + 1.5) / 2 - 1.5)),
        ("penalty", 1.5 + 0.5 * (-0.25 - 1.5)),  # the penalty's gradient is zero at the anchor
    ],
)
def test_special_c_takes_the_steps_computed_by_hand(prox: str, after_one_round: float, tmp_path: Path) -> None:
    _, weights = weights_of(tmp_path / "run", SpecialC(lam=0.5, prox=prox))  # type: ignore[arg-type]
    assert weights == [pytest.approx(1), pytest.approx(1.5), pytest.approx(after_one_round, abs=1e-6), weights[3]]


@pytest.mark.parametrize(
    ("weighting", "weight"),
    [
        ("uniform", (0.5 + 1.5) / 2),
        ("samples", (1 * 0.5 + 3 * 1.5) / 4),
        ("registered", (0.5 + 1.5) / 4),
    ],
)
def test_updates_are_averaged_with_the_chosen_weights(weighting: str, weight: float, tmp_path: Path) -> None:
    """Two of four clients send an update, with one copy of x = 1 and three of x = 3: deltas ½ and 3/2."""
    run = begin(
        tmp_path / "run", "fedavg", points([1.0, 3.0, 3.0, 3.0]), module=Scalar(), clients=4, clients_per_round=4,
        rounds=1, local_epochs=1, client_lr=0.5, eval_every=0, min_per_client=0, weighting=weighting,
    )  # fmt: skip
    rows: list[list[int]] = [[0], [1, 2, 3], [], []]
    run.federation.rows = lambda task, client: np.array(rows[client], dtype=np.int64)  # type: ignore[method-assign]
    assert float(play(run).vector[0]) == pytest.approx(weight, abs=1e-6)


def test_running_statistics_of_two_clients_are_averaged(tmp_path: Path) -> None:
    """BatchNorm sees means +10 and −10; one step with momentum 0.1 gives ±1, whose mean is 0, not the last client's."""
    domain = points([10.0] * 4 + [-10.0] * 4)
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1))
    for policy, expected in (("average", 0.0), ("mean-only", 0.0), ("local", 0.0)):
        run = begin(
            tmp_path / policy, "fedavg", domain, module=module, clients=2, clients_per_round=2, rounds=1,
            local_steps=1, local_epochs=None, batch_size=4, client_lr=0.0, eval_every=0, min_per_client=0,
            batch_norm=policy,
        )  # fmt: skip
        run.federation.rows = lambda task, client: np.arange(4) + 4 * client  # type: ignore[method-assign]
        play(run)
        named = dict(run.model.layout.named(run.vector))
        assert float(named["0.running_mean"]) == pytest.approx(expected, abs=1e-6)
        if policy == "local":
            own = [float(run.engine.states.load(client).tensors["batch_norm"][0]) for client in (0, 1)]
            assert own == pytest.approx([1.0, -1.0])


def test_the_anchor_includes_the_running_statistics(tmp_path: Path) -> None:
    """BatchNorm sees the constant 10 in task 1 and −10 in task 2, one step each with momentum 0.1; λ = 1, γ_G = 1/i.

    Mean: 0.1·10 = 1, the anchor. Then 0.9·1 − 0.1·10 = −0.1; the server goes half way, 0.45; (0.45 + 1)/2 = 0.725.
    Variance: 0.9·1 + 0 = 0.9. Then 0.81; half way 0.855; (0.855 + 0.9)/2 = 0.8775.
    """
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1))
    run = begin(
        tmp_path / "run", "special", points([10.0] * 8, [-10.0] * 8), module=module, lam=1.0, clients=2,
        clients_per_round=2, rounds=1, local_steps=1, local_epochs=None, batch_size=4, client_lr=0.0, eval_every=0,
        min_per_client=0,
    )  # fmt: skip
    run.federation.rows = lambda task, client: np.arange(4) + 4 * client  # type: ignore[method-assign]
    named = dict(run.model.layout.named(play(run).vector))
    assert float(named["0.running_mean"]) == pytest.approx(0.725, abs=1e-6)
    assert float(named["0.running_var"]) == pytest.approx(0.8775, abs=1e-6)
