"""SPECIAL+: each weight is pulled as strongly as the spread of earlier updates says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedspecial.config import merge_settings, resolve
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.messages import ServerState, Update
from fedspecial.engine import loop
from fedspecial.engine.round import run_round
from fedspecial.errors import InputError
from fedspecial.methods import special_plus_curvature as curvature
from fedspecial.methods.base import RoundInfo
from fedspecial.methods.special_plus import SpecialPlus
from toy_problems import begin, growing, images, learn, rotated_blobs

CNN = {"model": "cnn", "width": 4}


def context(task: int, num_weights: int) -> Any:
    return SimpleNamespace(task=task, model=SimpleNamespace(layout=SimpleNamespace(num_weights=num_weights)))


def info(task: int, num_weights: int, **changes: Any) -> RoundInfo:
    values = {"server_lr": 0.5, "client_lr": 0.1, "mean_steps": 4.0, "batch_size": 2, **changes}
    return RoundInfo(task, 0, context=context(task, num_weights), **values)


def play_rounds(method: SpecialPlus, server: ServerState, task: int, updates: list[list[float]], **changes: Any) -> Any:
    """One round with these updates of single clients."""
    for client, delta in enumerate(updates):
        method.receive(server, Update(client, {"theta": torch.tensor(delta)}, 4, 8, 0.0))
    mean = torch.tensor(updates).mean(0)
    return method.server_step(server, {"theta": mean}, info(task, len(server.theta), **changes))


def test_strengths_by_hand() -> None:
    """Var = 2 and 0; F = B·Var/(γ_L²·steps) = 2·2/(0.01·4) = 100; Λ = c·γ_G·γ_L·steps·F = 0.01·0.5·0.1·4·100 = 0.2."""
    method, server = SpecialPlus(c=0.01), ServerState(torch.zeros(2))
    assert play_rounds(method, server, 1, [[1.0, 1.0], [3.0, 1.0]]).lam is None
    assert server.theta.tolist() == [1.0, 0.5]
    method.begin_task(server, context(2, 2))
    assert server.per_weight[curvature.CURVATURE].tolist() == pytest.approx([100.0, 0.0])
    report = play_rounds(method, server, 2, [[2.4, 2.0], [2.4, 2.0]])
    # θ̄ = (1 + 1.2, 0.5 + 1); the first weight is pulled: (2.2 + 0.2·1)/1.2 = 2, the second is not
    assert server.theta.tolist() == pytest.approx([2.0, 1.5])
    assert (report.lam, report.metrics["mean_strength"]) == (0.0, pytest.approx(0.1))
    assert report.anchored.share == 0.5
    assert report.anchored.lam == pytest.approx(0.2)
    assert report.anchored.drift == pytest.approx(1.0)
    assert report.anchored.delta_norm == pytest.approx(2.4)


def test_curvature_is_the_mean_over_rounds_and_the_sum_over_tasks() -> None:
    method, server = SpecialPlus(c=1e-6), ServerState(torch.zeros(1))
    for task, spreads in ((1, (1.0, 2.0)), (2, (4.0,))):
        if task > 1:
            method.begin_task(server, context(task, 1))
        for spread in spreads:  # Var = 2·spread²
            play_rounds(method, server, task, [[-spread], [spread]])
    method.begin_task(server, context(3, 1))
    assert server.per_weight[curvature.CURVATURE].item() == pytest.approx(50 * ((2 + 8) / 2 + 32))


def test_no_strength_exceeds_the_largest() -> None:
    method, server = SpecialPlus(c=1e9), ServerState(torch.zeros(1))
    play_rounds(method, server, 1, [[1.0], [3.0]])
    method.begin_task(server, context(2, 1))
    assert play_rounds(method, server, 2, [[1.0], [1.0]]).lam == 20.0


def test_numbers_stay_finite_where_the_squares_of_updates_overflow() -> None:
    """The updates of a run that diverges; their norms go into its events."""
    method, server = SpecialPlus(), ServerState(torch.zeros(2))
    play_rounds(method, server, 1, [[1e25, 0.0], [3e25, 0.0]])
    method.begin_task(server, context(2, 2))
    report = play_rounds(method, server, 2, [[3e25, 0.0], [1e25, 4.0]])
    assert report.anchored.delta_norm == pytest.approx(2e25)
    assert report.anchored.drift == pytest.approx(0.5 * 2e25 / 21)  # γ_G·Δ̄, pulled by the largest strength, 20
    assert torch.isfinite(torch.tensor([report.lam, report.anchored.lam, report.metrics["mean_strength"]])).all()


def test_one_update_per_round_says_nothing_and_pulls_nothing() -> None:
    method, server = SpecialPlus(), ServerState(torch.zeros(1))
    play_rounds(method, server, 1, [[1.0]])
    method.begin_task(server, context(2, 1))
    report = play_rounds(method, server, 2, [[1.0]])
    assert report.lam is None
    assert server.theta.tolist() == [1.0]


def test_with_an_adaptive_optimizer_the_strengths_have_the_mean_one_tenth() -> None:
    method, server = SpecialPlus(), ServerState(torch.zeros(2))
    play_rounds(method, server, 1, [[1.0, 0.0], [3.0, 1.0]], adaptive=True)
    method.begin_task(server, context(2, 2))
    report = play_rounds(method, server, 2, [[1.0, 1.0], [1.0, 1.0]], adaptive=True)
    assert report.metrics["mean_strength"] == pytest.approx(0.1)
    assert report.lam == pytest.approx(0.2 * 0.5 / 2.5)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("offset", [0.0, 0.02, 1000.0])
def test_the_spread_is_the_variance_also_where_updates_hardly_differ(count: int, offset: float) -> None:
    updates = torch.randn(count, 300_000, generator=torch.Generator().manual_seed(1)) * 0.01 + offset
    server = ServerState(torch.zeros(300_000))
    for update in updates:
        curvature.add(server, update)
        assert len(server.tensors) <= 2, "two vectors for any number of clients"
    curvature.learn_curvature(server, info(1, 300_000))
    assert not server.tensors
    found = server.per_weight[curvature.CURRENT].double()
    torch.testing.assert_close(found, 50 * updates.double().var(0), rtol=1e-5, atol=5e-11)


@pytest.mark.parametrize("count", [2, 5])
def test_the_order_of_arrival_changes_no_bit(count: int) -> None:
    updates = torch.randn(count, 300_000, generator=torch.Generator().manual_seed(1)) * 0.01 + 0.02
    found = set()
    for order in (range(count), reversed(range(count))):
        server = ServerState(torch.zeros(300_000))
        for number in order:
            curvature.add(server, updates[number])
        curvature.learn_curvature(server, info(1, 300_000))
        found.add(server.per_weight[curvature.CURRENT].numpy().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("count", [2, 3])
def test_equal_updates_have_no_spread(count: int) -> None:
    server, update = ServerState(torch.zeros(1000)), torch.randn(1000, generator=torch.Generator().manual_seed(2))
    for _ in range(count):
        curvature.add(server, update)
    curvature.learn_curvature(server, info(1, 1000))
    assert server.numbers[curvature.ROUNDS] == 1
    assert not server.per_weight[curvature.CURRENT].any()


def test_memory_that_is_used_again_changes_nothing() -> None:
    """A resumed server has none: it must learn the same."""
    method, servers = SpecialPlus(), [ServerState(torch.zeros(3)) for _ in range(2)]
    rounds = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(3)).tolist()
    for updates in rounds:
        for server in servers:
            play_rounds(method, server, 1, updates)
        assert servers[0].scratch
        servers[1].scratch.clear()
    first, second = (server.per_weight[curvature.CURRENT] for server in servers)
    assert first.any()
    assert torch.equal(first, second)


def test_updates_of_a_round_that_was_held_count_with_the_next_one() -> None:
    method, server = SpecialPlus(), ServerState(torch.zeros(1))
    method.receive(server, Update(0, {"theta": torch.tensor([1.0])}, 4, 8, 0.0))  # no quorum: no server step
    play_rounds(method, server, 1, [[3.0]])
    method.begin_task(server, context(2, 1))
    assert server.per_weight[curvature.CURVATURE].tolist() == pytest.approx([100.0])


def test_a_run_keeps_the_statistics_and_is_certified(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", "special-plus", images(tasks=3), **CNN)
    events = read_events(tmp_path / "run" / "events.jsonl")
    first, *later = result.certificates
    assert not first["anchored"]
    for task in later:
        assert task["status"] == "holds"
        part = task["anchored_part"]
        assert 0 < part["share"] <= 1
        assert 0 < part["drift"] <= part["recursion_bound"] <= part["delta_cap"]
        assert part["lam"] > (task["lam"] or 0)
    rounds = of_kind(events, "round")
    assert {event["server_lr"] for event in rounds} == {1.0}
    assert all(event["anchored"] is None for event in rounds if event["task"] == 1)


def test_clients_upload_what_they_upload_in_fedavg_and_download_each_set_of_statistics_once(tmp_path: Path) -> None:
    for name, more in (("special-plus", {}), ("fedavg", {"batch_norm": "mean-only"})):
        learn(tmp_path / name, name, images(tasks=2), **CNN, **more, clients=3, clients_per_round=3)
    ours, fedavg = (
        of_kind(read_events(tmp_path / name / "events.jsonl"), "round") for name in ("special-plus", "fedavg")
    )
    assert [event["bytes_up"] for event in ours] == [event["bytes_up"] for event in fedavg]
    once = [event["bytes_once"] for event in ours]
    assert once[:3] == [0, 0, 0]
    assert once[3] > 0
    assert once[4:] == [0, 0]
    extra = [a["bytes_down"] - b["bytes_down"] for a, b in zip(ours, fedavg, strict=True)]
    assert extra == once


def test_nothing_pulled_and_no_bank_is_fedavg_with_batch_norm_layers_too(tmp_path: Path) -> None:
    ours = learn(tmp_path / "ours", "special-plus", images(), **CNN, **SpecialPlus.fedavg_when)
    assert ours.model_sha256 == learn(tmp_path / "fedavg", "fedavg", images(), **CNN).model_sha256


def test_the_weights_of_new_outputs_are_not_pulled(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", "special-plus", growing(), **CNN, alpha=100.0)
    loop._begin_task(run, 1)
    run_round(run, 1, 0)
    loop._begin_task(run, 2)
    known = run.server.per_weight[curvature.CURVATURE]
    assert len(known) == run.model.layout.num_weights
    (head,) = (slot for slot in run.model.layout.slots if slot.name == "fc.weight")
    assert head.view(known)[:2].any()
    assert not head.view(known)[2:].any()
    run.log.close()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("bank", 1.0)),
        ({"server_lr": "1/i", "batch_norm": "mean-only"}, ("mean-only", "1/i")),
        ({"method": "special"}, ("average", "1/i")),
        ({"server_optimizer": "adam"}, ("bank", 0.01)),
    ],
)
def test_the_method_has_defaults_for_settings_of_the_run_and_the_users_win(
    given: dict[str, Any], expected: tuple[Any, Any]
) -> None:
    settings = merge_settings({"benchmark": "digits-shift", "method": "special-plus", **given})
    config = resolve(settings).config
    assert (config.batch_norm, config.server_lr) == expected


def test_it_needs_single_updates_and_says_so() -> None:
    private = {"dp_clip": 1.0, "dp_noise_multiplier": 1.0, "batch_norm": "average"}
    settings = merge_settings({"benchmark": "digits-shift", "method": "special-plus", **private})
    with pytest.raises(InputError, match=r"^method=special-plus: not with differential privacy"):
        resolve(settings)


def test_a_table_without_batch_norm_still_gets_the_pull(tmp_path: Path) -> None:
    learn(tmp_path / "run", "special-plus", rotated_blobs(tasks=2))
    later = [r for r in of_kind(read_events(tmp_path / "run" / "events.jsonl"), "round") if r["task"] == 2]
    assert all(r["metrics"]["mean_strength"] > 0 for r in later)


def test_without_batch_norm_layers_it_is_the_pull_on_the_weights_alone(tmp_path: Path) -> None:
    found = {
        choice: learn(tmp_path / choice, "special-plus", rotated_blobs(tasks=2), batch_norm=choice)
        for choice in ("bank", "mean-only", "average")
    }
    assert len({(run.model_sha256, str(run.matrix), run.bytes_down) for run in found.values()}) == 1
