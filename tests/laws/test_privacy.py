"""Central differential privacy: what is clipped, what is added, what is divided by, and what it costs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedspecial import methods
from fedspecial.config import merge_settings, resolve
from fedspecial.core.events import of_kind, read_events
from fedspecial.engine.aggregation.mean import RunningMean
from fedspecial.engine.aggregation.privacy import (
    Charge,
    PrivateAggregation,
    epsilon,
    noise_for,
    private_aggregation,
    system_noise,
    system_sample,
    update_norm,
)
from fedspecial.engine.base import Reply
from fedspecial.errors import InputError
from fedspecial.methods.base import Method
from fedspecial.methods.special import Special
from toy_problems import QUICK, begin, images, learn, play, rotated_blobs

PRIVATE: dict[str, Any] = {"dp_clip": 0.5, "dp_noise_multiplier": 0.5, "rounds": 2}
SILENT = PrivateAggregation(1.0, 1.0, 1e-5, None, lambda task, round, name, size: np.zeros(size))


def charges_of(folder: Path) -> list[dict[str, Any]]:
    return of_kind(read_events(folder / "events.jsonl"), "privacy")


# --- the mechanism ----------------------------------------------------------------------------------------------


def test_updates_are_clipped_summed_and_divided_by_the_planned_number() -> None:
    """(3, 4) has norm 5 and becomes (0.6, 0.8); (0.3, 0.4) stays; two of four planned clients answered."""
    mean = RunningMean()
    for delta in ([3.0, 4.0], [0.3, 0.4]):
        deltas = {"theta": torch.tensor(delta)}
        mean.add(deltas, SILENT.factor(deltas))
    assert mean.result(4)["theta"].tolist() == pytest.approx([0.9 / 4, 1.2 / 4])


def test_batch_norm_statistics_are_inside_the_clipped_vector() -> None:
    deltas = {"theta": torch.tensor([3.0]), "buffers": torch.tensor([4.0])}
    assert update_norm(deltas) == 5.0
    assert SILENT.factor(deltas) == pytest.approx(0.2)


@pytest.mark.parametrize("batch_norm", ["average", "mean-only"])
def test_noise_reaches_every_coordinate_of_a_network_with_batch_norm(batch_norm: str, tmp_path: Path) -> None:
    run = begin(
        *(tmp_path / "run", "fedavg", images(rows=16)),
        model="resnet18",
        width=2,
        batch_norm=batch_norm,
        client_lr=0,
        **PRIVATE,
    )
    before = run.vector.clone()
    assert len(before) > run.model.layout.num_weights
    play(run)
    assert (run.vector != before).all()


def test_the_noise_of_the_mean_is_clip_times_multiplier_over_the_planned_number(tmp_path: Path) -> None:
    """Without training, the model moves by the noise alone: standard deviation z·C/N in each of T rounds."""
    run = begin(
        tmp_path / "run", width=64, client_lr=0, server_lr=1, rounds=1, dp_clip=2, dp_noise_multiplier=3,
        benchmark=rotated_blobs(tasks=1),
    )  # fmt: skip
    before = run.vector.clone()
    play(run)
    assert float((run.vector - before).std()) == pytest.approx(2 * 3 / QUICK["clients_per_round"], rel=0.15)


def test_a_refused_update_does_not_change_the_divisor(tmp_path: Path) -> None:
    """One client sends NaN: the others are still divided by the planned number."""
    moved = []
    for broken in (False, True):
        run = begin(
            tmp_path / str(broken), rounds=1, benchmark=rotated_blobs(tasks=1), clients_per_round=4, **SMALL_NOISE
        )
        run.engine = _Changed(
            run.engine, lambda n, reply, first=math.nan if broken else 1.0: _as_one(reply, 1.0 if n else first)
        )  # type: ignore[assignment]
        before = run.vector.clone()
        play(run)
        moved.append(float((run.vector - before).mean()))
    assert moved[1] == pytest.approx(moved[0] * 3 / 4, rel=1e-3)


SMALL_NOISE = {"dp_clip": 1e6, "dp_noise_multiplier": 1e-12}


def test_the_noise_of_the_operating_system_is_standard_normal() -> None:
    values = system_noise(1, 0, "theta", 40_001)
    assert len(values) == 40_001
    assert abs(values.mean()) < 0.03
    assert values.std() == pytest.approx(1, rel=0.02)
    inside = np.mean(np.abs(values) < 1.959964)
    assert inside == pytest.approx(0.95, abs=0.006)
    assert not np.array_equal(values, system_noise(1, 0, "theta", 40_001))


def test_the_operating_system_samples_every_client_equally_often() -> None:
    drawn = Counter(client for _ in range(3000) for client in system_sample(6, 2))
    assert set(drawn) == set(range(6))
    assert max(drawn.values()) < 1.2 * min(drawn.values())


# --- the accounting ---------------------------------------------------------------------------------------------


def _delta_of_gaussian(epsilon: float, noise: float) -> float:
    """δ(ε) of Gaussian noise z·C on a sum that changes by at most 2C (Balle and Wang, 2018, Theorem 8)."""

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    ratio = 2 / noise
    return phi(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * phi(-ratio / 2 - epsilon / ratio)


def test_one_release_with_all_clients_is_the_gaussian_mechanism_with_sensitivity_2c() -> None:
    spent = epsilon({Charge(4.0, 3, 3): 1}, 1e-5)
    assert spent.sampled == spent.known
    assert _delta_of_gaussian(spent.known, 4.0) == pytest.approx(1e-5, rel=1e-6)


def test_four_releases_cost_as_much_as_one_with_half_the_noise() -> None:
    assert epsilon({Charge(6.0, 3, 3): 4}, 1e-5) == pytest.approx(epsilon({Charge(3.0, 3, 3): 1}, 1e-5))


def test_releases_with_different_noise_add_up() -> None:
    """1/z² adds up: 1/4² + 3·1/8² = 7/64."""
    both = epsilon({Charge(4.0, 3, 3): 1, Charge(8.0, 3, 3): 3}, 1e-5)
    assert both == pytest.approx(epsilon({Charge(math.sqrt(64 / 7), 3, 3): 1}, 1e-5))


def test_sampling_is_accounted_as_without_replacement() -> None:
    """Not as Poisson sampling, whose ε is smaller and does not apply; and never above the ε without sampling."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    def by_hand(event: Any, relation: Any) -> float:
        accountant = RdpAccountant(neighboring_relation=relation)
        accountant.compose(event, 50)
        return float(accountant.get_epsilon(1e-5))

    relations = dp_accounting.NeighboringRelation
    release = dp_accounting.GaussianDpEvent(1.0)
    without = by_hand(dp_accounting.SampledWithoutReplacementDpEvent(100, 10, release), relations.REPLACE_ONE)
    poisson = by_hand(
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0)), relations.ADD_OR_REMOVE_ONE
    )
    spent = epsilon({Charge(2.0, 10, 100): 50}, 1e-5)
    assert spent.sampled == pytest.approx(without, rel=0.01)
    assert spent.sampled > poisson
    assert spent.sampled < spent.known
    nearly_all = epsilon({Charge(2.0, 3, 4): 50}, 1e-5)
    assert nearly_all.sampled <= nearly_all.known


@pytest.mark.parametrize(("sampled", "clients"), [(3, 3), (5, 50)])
def test_a_target_gives_the_smallest_noise(sampled: int, clients: int) -> None:
    noise = noise_for(2.0, 1e-5, 40, sampled, clients)
    assert 1.98 < epsilon({Charge(noise, sampled, clients): 40}, 1e-5).sampled <= 2.0


# --- a run ------------------------------------------------------------------------------------------------------


def test_epsilon_grows_over_rounds_and_tasks_and_ends_at_the_target(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", rounds=2, dp_clip=1, dp_epsilon=30)
    spent = [event["epsilon"] for event in charges_of(tmp_path / "run")]
    assert len(spent) == 3 * 2
    assert spent == sorted(spent)
    assert result.privacy is not None
    assert 29 < result.privacy["epsilon"] == spent[-1] <= 30
    assert result.privacy["simulated"]
    card = (tmp_path / "run" / "README.md").read_text()
    assert "Simulated ε" in card
    assert "Not covered by ε: training loss" in card
    assert "Simulated ε" in result._repr_html_()


def test_epsilon_does_not_depend_on_lambda(tmp_path: Path) -> None:
    """The anchor is applied to the noisy mean: post-processing."""
    runs = {}
    for lam in (0.0, 0.5, 20.0):
        learn(tmp_path / f"{lam}", Special(lam=lam), **PRIVATE)
        runs[lam] = charges_of(tmp_path / f"{lam}")
    assert runs[0.0] == runs[0.5] == runs[20.0]
    assert len(runs[0.0]) == 6


def test_zero_lambda_is_fedavg_with_differential_privacy_too(tmp_path: Path) -> None:
    special = learn(tmp_path / "special", Special(lam=0.0), **PRIVATE)
    assert special.model_sha256 == learn(tmp_path / "fedavg", "fedavg", **PRIVATE).model_sha256


def test_a_simulation_is_reproducible_and_without_noise_another(tmp_path: Path) -> None:
    first, second = (learn(tmp_path / name, "special", **PRIVATE) for name in ("a", "b"))
    assert first.model_sha256 == second.model_sha256
    assert first.model_sha256 != learn(tmp_path / "c", "special", rounds=2).model_sha256


def test_no_number_of_a_single_update_is_recorded_and_the_certificate_holds(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special", **PRIVATE)
    rounds = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round")
    assert {event["max_client_delta"] for event in rounds} == {None}
    assert result.certificates is not None
    assert all(task["status"] == "holds" for task in result.certificates if task["anchored"])


def test_an_interrupted_simulation_charges_nothing_twice(tmp_path: Path) -> None:
    """The same seed gives the same noise, so a repeated round releases nothing new; the noise does not change."""
    learn(tmp_path / "whole", "special", dp_clip=1, dp_epsilon=30)
    events = read_events(tmp_path / "whole" / "events.jsonl")
    config = resolve(merge_settings({**QUICK, "method": "special", "dp_clip": 1, "dp_epsilon": 30})).config
    before = private_aggregation(config, 3, 4, [])
    after = private_aggregation(config, 3, 4, events)
    longer = private_aggregation(config, 7, 4, events)
    assert before is not None
    assert after is not None
    assert longer is not None
    assert after.noise_multiplier == before.noise_multiplier == longer.noise_multiplier
    assert after.charges.total() == 9


def test_a_run_stops_before_it_exceeds_its_budget(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "special", dp_clip=1, dp_epsilon=30)
    assert run.private is not None
    run.private.charge(1, 0, 3, 4)
    with pytest.raises(InputError, match="dp_epsilon=30: the privacy budget is used up after 9 rounds"):
        play(run)
    assert len(charges_of(tmp_path / "run")) == 8


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dp_noise_multiplier": 1}, "dp_noise_multiplier=1: noise needs a bound on the updates; give dp_clip too"),
        ({"dp_clip": 1}, "dp_clip=1: give dp_noise_multiplier or dp_epsilon, one of them"),
        ({"dp_clip": 1, "dp_noise_multiplier": 2, "dp_epsilon": 3}, "dp_noise_multiplier=2 and dp_epsilon=3: give"),
        ({"dp_clip": 0, "dp_noise_multiplier": 1}, "dp_clip=0"),
        ({**PRIVATE, "dp_delta": 1}, "dp_delta=1"),
        ({**PRIVATE, "weighting": "samples"}, "weighting=samples: not with differential privacy"),
        ({**PRIVATE, "estimate": True}, "estimate=true: not with differential privacy"),
        ({**PRIVATE, "mu": 0.5}, "mu=0.5: not with differential privacy (dp_clip) and local_epochs"),
        ({**PRIVATE, "aggregation": "median"}, "aggregation=median: not with differential privacy"),
        ({**PRIVATE, "norm_limit": 10}, "norm_limit=10: not with differential privacy"),
        ({**PRIVATE, "mode": "async"}, "mode=async: not with differential privacy"),
        ({**PRIVATE, "over_select": 7, "latency": "lognormal"}, "over_select=7: not with differential privacy"),
        ({**PRIVATE, "detect": "loss"}, "detect=loss: not with differential privacy"),
        ({**PRIVATE, "method": "special-plus"}, "method=special-plus: not with differential privacy"),
        ({**PRIVATE, "method": "fedcil"}, "method=fedcil: not with differential privacy"),
        ({**PRIVATE, "method": "srfdil"}, "method=srfdil: not with differential privacy"),
        ({**PRIVATE, "method": "pfeddil"}, "method=pfeddil: not with differential privacy"),
        ({**PRIVATE, "method": "flwf2t"}, "method=flwf2t: not with differential privacy"),
    ],
)
def test_what_epsilon_would_not_cover_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(merge_settings({"method": "special", **settings}))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_mu_is_allowed_with_a_fixed_number_of_steps() -> None:
    allowed = resolve(merge_settings({**PRIVATE, "method": "special", "mu": 0.5, "local_steps": 3}))
    assert allowed.method == Special(mu=0.5)


# --- methods that need only the sum -----------------------------------------------------------------------------

DECLARED = [name for name in methods.names() if methods.find(name).needs_only_sum]


def test_these_methods_declare_that_they_need_only_the_sum() -> None:
    assert set(DECLARED) == {"fedavg", "fedprox", "special", "special-c", "mfcl", "joint"}


def test_the_declaration_is_not_inherited() -> None:
    class Curious(Special):
        pass

    assert not Curious.needs_only_sum
    assert not Method.needs_only_sum


class _Changed:
    """An engine whose replies are changed on their way to the server; it refuses queries."""

    def __init__(self, engine: Any, change: Any) -> None:
        self._engine, self._change = engine, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def train(self, *args: Any) -> Any:
        for number, reply in enumerate(self._engine.train(*args)):
            yield self._change(number, reply)

    def query(self, query: Any) -> Any:
        raise AssertionError("a method that needs only the sum asks its clients nothing")


def _as_one(reply: Reply, value: float) -> Reply:
    assert reply.update is not None
    deltas = {name: torch.full_like(delta, value) for name, delta in reply.update.deltas.items()}
    return replace(reply, update=replace(reply.update, deltas=deltas))


class _Anonymous(_Changed):
    """Replies under one another's names, in another order, with false losses and sample counts: the same sum."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine, None)

    def train(self, *args: Any) -> Any:
        replies = []
        for reply in self._engine.train(*args):
            deltas = {name: delta.clone() for name, delta in reply.update.deltas.items()}
            replies.append(replace(reply, update=replace(reply.update, deltas=deltas)))
        clients = [reply.client for reply in replies]
        for client, reply in zip(clients, reversed(replies), strict=True):
            update = replace(reply.update, client=client, loss=7.0, samples=10**6, numbers={}, uploads={})
            yield replace(reply, client=client, update=update)


@pytest.mark.parametrize("method", DECLARED)
def test_the_server_sees_nothing_but_the_sum(method: str, tmp_path: Path) -> None:
    sizes = {"iterations": 2, "generator_width": 4, "latent": 8, "synthetic": 8} if method == "mfcl" else {}
    settings = {"rounds": 2, "model": "cnn", "width": 4, "local_epochs": 1, **sizes}
    vectors = []
    for anonymous in (False, True):
        run = begin(tmp_path / str(anonymous), method, images(), **settings)
        if anonymous:
            run.engine = _Anonymous(run.engine)
        play(run)
        state = {"vector": run.vector, **run.server.tensors, **run.server.models}
        vectors.append({name: tensor.clone() for name, tensor in state.items()})
    assert vectors[0].keys() == vectors[1].keys()
    for name, tensor in vectors[0].items():
        assert torch.equal(tensor, vectors[1][name]), name
