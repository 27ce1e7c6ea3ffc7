"""Laws of clipping: a reply differs from the model by at most C, for every type of array."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from apps import MODEL, WITH_COUNTER, moving_app, nodes, record, reply_with
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, PrivacySpent, SamplingMethod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping as NoiseOverClipped
from flwr.serverapp.strategy import FedAvg, Strategy
from hypothesis import given
from hypothesis import strategies as st

from fedspecial.errors import InputError
from fedspecial.flower import ClippedReplies, InProcessGrid, SpecialStrategy, clipping_mod
from fedspecial.flower.arrays import record_to_arrays
from fedspecial.flower.grid import lost
from fedspecial.flower.strategy.clipping import clip, update_norm
from fedspecial.flower.strategy.strategy import RoundError

CLIENTS = 4
LIMIT = 0.3
moves = st.floats(-1e3, 1e3, allow_nan=False)


@given(moves, moves, st.floats(1e-3, 1e3))
def test_the_update_is_at_most_the_limit_and_keeps_its_direction(weight: float, scale: float, limit: float) -> None:
    old = {"w": np.zeros((2, 2)), "s": np.zeros(())}
    new = {"w": np.full((2, 2), weight), "s": np.asarray(scale)}
    done = clip(new, old, limit)
    assert done.norm == pytest.approx(math.hypot(2 * weight, scale))
    assert update_norm(done.arrays, old) <= limit * (1 + 1e-12)
    assert done.was_clipped == (done.norm > limit)
    np.testing.assert_allclose(done.arrays["w"] * scale, done.arrays["s"] * weight, rtol=1e-9, atol=1e-12)


def test_a_scalar_is_clipped_like_every_array() -> None:
    done = clip({"logit_scale": np.asarray(100.0)}, {"logit_scale": np.asarray(0.0)}, 1.0)
    assert float(done.arrays["logit_scale"]) == 1.0


def test_a_zero_update_stays_zero() -> None:
    done = clip(MODEL, MODEL, 1.0)
    assert done.norm == 0
    assert all(np.array_equal(done.arrays[name], MODEL[name]) for name in MODEL)


def test_an_update_below_the_limit_is_unchanged() -> None:
    new = {name: value + np.float32(1e-3) for name, value in MODEL.items()}
    done = clip(new, MODEL, 1.0)
    assert all(done.arrays[name] is new[name] for name in MODEL)


def test_counters_are_reset_to_the_servers_values() -> None:
    new = {**MODEL, "batches": np.asarray([1000, 7])}
    assert clip(new, WITH_COUNTER, 1.0).arrays["batches"].tolist() == [3, 9]


@pytest.mark.parametrize("limit", [0.0, -1.0, math.inf, math.nan])
def test_an_invalid_limit_is_refused(limit: float) -> None:
    with pytest.raises(InputError, match="clipping_norm="):
        clip(MODEL, MODEL, limit)


class Account:
    """Counts releases, as an accountant of Flower's protocol."""

    config = PrivacyConfig(1e-5, CLIENTS, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)

    def __init__(self) -> None:
        self.num_releases = 0

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        self.num_releases += count

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        return PrivacySpent(float(self.num_releases), 1e-5, self.num_releases, "counting")

    def state_dict(self) -> dict[str, object]:
        return {"num_releases": self.num_releases}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_releases = state["num_releases"]


def accountants() -> list[Any]:
    try:
        from flwr.serverapp import RdpAccountant

        return [Account(), RdpAccountant(Account.config)]
    except ImportError:
        return [Account()]


def plain() -> FedAvg:
    return FedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, fraction_evaluate=0.0)


def noisy(noise: float, account: Any = None) -> Strategy:
    return NoiseOverClipped(plain(), noise, LIMIT, CLIENTS, accountant=account)


def final(strategy: Strategy, grid: InProcessGrid, rounds: int = 1) -> dict[str, Any]:
    return record_to_arrays(strategy.start(grid, record(WITH_COUNTER), num_rounds=rounds).arrays)


def test_clipping_at_the_client_and_at_the_server_agree() -> None:
    at_site = final(SpecialStrategy(plain()), InProcessGrid(moving_app(mods=[clipping_mod(LIMIT)]), nodes(CLIENTS)))
    at_server = final(SpecialStrategy(ClippedReplies(plain(), LIMIT)), InProcessGrid(moving_app(), nodes(CLIENTS)))
    for name, value in at_site.items():
        np.testing.assert_allclose(value, at_server[name], rtol=0, atol=1e-7)
    assert 0 < update_norm(at_site, WITH_COUNTER) <= LIMIT
    assert at_site["batches"].tolist() == at_server["batches"].tolist() == [3, 9]


def test_the_smaller_of_the_two_limits_applies() -> None:
    """Flower's privacy wrapper sends 0.3; a client with a limit of 0.01 uses that."""
    grid = InProcessGrid(moving_app(mods=[clipping_mod(0.01)]), nodes(CLIENTS))
    assert update_norm(final(SpecialStrategy(noisy(0.0)), grid), WITH_COUNTER) <= 0.0101
    grid = InProcessGrid(moving_app(mods=[clipping_mod()]), nodes(CLIENTS))
    assert 0.0101 < update_norm(final(SpecialStrategy(noisy(0.0)), grid), WITH_COUNTER) <= LIMIT + 1e-6


def test_a_client_without_any_limit_sends_nothing() -> None:
    grid = InProcessGrid(moving_app(mods=[clipping_mod()]), nodes(CLIENTS))
    with pytest.raises(RoundError, match="neither the client nor the server has set a limit"):
        final(SpecialStrategy(plain()), grid)


@pytest.mark.parametrize("account", accountants(), ids=lambda account: type(account).__name__)
def test_the_anchor_around_clipping_and_noise_costs_no_privacy(account: Any) -> None:
    """Releases are counted before the anchor: one per round, for every λ."""
    strategy = SpecialStrategy(ClippedReplies(noisy(1.0, account), LIMIT), lam=0.5, rounds_per_task=2)
    got = final(strategy, InProcessGrid(moving_app(), nodes(CLIENTS)), rounds=4)
    assert account.num_releases == 4
    assert got["batches"].tolist() == [3, 9]


def test_noise_is_added_before_the_anchor() -> None:
    """If clients do not move, only noise of σ = z·C/n remains; in the second task the anchor divides it by 1 + λ."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return reply_with(message, record_to_arrays(message.content["arrays"]), 0)

    np.random.seed(3)  # noqa: NPY002 - Flower draws its noise from here
    grid = InProcessGrid(app, nodes(CLIENTS))
    strategy = SpecialStrategy(ClippedReplies(noisy(1.0), LIMIT), lam=1.0, rounds_per_task=1)
    first = strategy.start(grid, record({"w": np.zeros(200_000)}), num_rounds=1).arrays
    second = strategy.start(grid, first, num_rounds=1).arrays
    steps = [record_to_arrays(first)["w"], record_to_arrays(second)["w"] - record_to_arrays(first)["w"]]
    assert [float(step.std()) for step in steps] == pytest.approx([LIMIT / CLIENTS, LIMIT / CLIENTS / 2], rel=0.01)


def test_a_round_with_a_lost_client_spends_no_privacy_and_changes_nothing() -> None:
    """With accounting, all clients are needed; if one is missing, Flower returns no average and nothing is anchored."""
    account = Account()
    grid = InProcessGrid(moving_app(), nodes(CLIENTS))
    grid.faults[100] = lost
    strategy = SpecialStrategy(ClippedReplies(noisy(1.0, account), LIMIT))
    result = strategy.start(grid, record(WITH_COUNTER), num_rounds=1)
    assert account.num_releases == 0
    assert strategy.rounds_done == 0
    assert not result.arrays


def test_privacy_spent_before_a_restart_is_kept(tmp_path: Any) -> None:
    path = tmp_path / "state.safetensors"
    first = SpecialStrategy(ClippedReplies(noisy(1.0, Account()), LIMIT), checkpoint=path)
    final(first, InProcessGrid(moving_app(), nodes(CLIENTS)), rounds=2)
    account = Account()
    SpecialStrategy(ClippedReplies(noisy(1.0, account), LIMIT)).load(path)
    assert account.num_releases == 2
    with pytest.raises(InputError, match="the strategy has no accountant"):
        SpecialStrategy(ClippedReplies(noisy(1.0), LIMIT)).load(path)
