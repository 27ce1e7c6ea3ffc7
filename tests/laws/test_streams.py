"""Every random draw comes from a named stream: laws of streams and of client sampling."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedspecial.core.events import read_events
from fedspecial.core.streams import draw_others, sample_clients, stream, stream_seed, torch_stream
from fedspecial.methods.base import ClientContext, Method
from toy_problems import begin, play


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(0, 99), st.integers(0, 99))
def test_a_stream_is_a_function_of_its_name(seed: int, task: int, round: int, client: int) -> None:
    a, b = (stream(seed, "batches", task, round, client).integers(0, 2**63, 5) for _ in range(2))
    assert (a == b).all()


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["a", "b"]), st.integers(0, 50)), unique=True, max_size=20)
)
def test_different_names_are_different_streams(names: list[tuple[int, str, int]]) -> None:
    assert len({stream_seed(*name) for name in names}) == len(names)


def test_the_digits_of_neighbouring_keys_are_not_joined() -> None:
    assert stream_seed(1, "x", 11, 1) != stream_seed(1, "x", 1, 11)


@given(st.integers(0, 1000), st.integers(1, 50), st.data())
def test_clients_are_sampled_without_replacement(seed: int, clients: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, clients))
    chosen = sample_clients(seed, 1, 0, clients, count)
    assert len(set(chosen)) == count
    assert chosen == sorted(chosen)
    assert all(0 <= client < clients for client in chosen)


@given(st.integers(0, 1000), st.integers(1, 50), st.integers(0, 60), st.data())
def test_others_are_drawn_as_from_a_list_without_the_excluded_clients(
    seed: int, clients: int, count: int, data: st.DataObject
) -> None:
    excluded = data.draw(st.sets(st.integers(0, clients - 1)))
    free = [client for client in range(clients) if client not in excluded]
    drawn = draw_others(seed, 1, 7, 0, clients, excluded, count)
    assert sorted(drawn) == [free[place] for place in sample_clients(seed, 1, 7, len(free), min(count, len(free)))]
    assert set(draw_others(seed, 1, 7, 1, clients, excluded, clients)) == set(free)


def test_every_client_is_sampled_equally_often() -> None:
    counts = [0] * 8
    for round in range(2000):
        for client in sample_clients(25, 1, round, 8, 4):
            counts[client] += 1
    assert all(abs(count - 1000) < 5 * (2000 * 0.25) ** 0.5 for count in counts)


def test_torchs_global_generator_follows_the_stream_and_is_restored() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    with torch_stream(25, "torch", 1, 2, 3):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with torch_stream(25, "torch", 1, 2, 3):
        assert torch.equal(torch.rand(3), inside)


def test_the_schedules_of_two_tasks_are_independent() -> None:
    """Two choices of 4 of 8 clients, out of 70, are equal with probability 1/70: 28.6 ± 5.3 times in 2,000 rounds."""
    pairs = [(sample_clients(25, 1, round, 8, 4), sample_clients(25, 2, round, 8, 4)) for round in range(2000)]
    assert abs(sum(one == two for one, two in pairs) - 2000 / 70) < 5 * (2000 / 70 * 69 / 70) ** 0.5


def test_a_run_samples_the_clients_of_its_task_and_round(tmp_path: Path) -> None:
    play(begin(tmp_path / "run", clients=8, clients_per_round=4, min_per_client=2, local_steps=1, local_epochs=None))
    rounds = [event for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "round"]
    schedule = [event["clients"] for event in rounds]
    places = [(task, round) for task in (1, 2, 3) for round in range(3)]
    assert schedule == [sample_clients(25, task, round, 8, 4) for task, round in places]
    assert len({tuple(clients) for clients in schedule}) > 1


def test_every_client_sees_its_samples_in_another_order_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the 24! orders of a client's 24 samples are never equal by chance."""
    orders: dict[tuple[int, int, int], list[int]] = {}

    def record(method: Method, context: ClientContext) -> None:
        place = context.broadcast.task, context.broadcast.round, context.client
        orders.setdefault(place, []).extend(context.positions.tolist())

    monkeypatch.setattr(Method, "after_step", record)
    play(begin(tmp_path / "run", partition="iid", clients=4, clients_per_round=4, local_epochs=1))
    assert len(orders) == 3 * 3 * 4
    assert all(sorted(order) == list(range(24)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == len(orders)
    for (task, round, client), order in orders.items():
        assert order == stream(25, "batches", task, round, client).permutation(24).tolist()
