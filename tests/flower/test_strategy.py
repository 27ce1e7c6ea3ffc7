"""Laws of SPECIAL as a Flower strategy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from apps import MODEL, WITH_COUNTER, move, moving_app, nodes, record, reply_with
from flwr.app import Array, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian, Strategy
from safetensors.numpy import save_file

from fedspecial.errors import InputError
from fedspecial.flower import InProcessGrid, SpecialStrategy
from fedspecial.flower.arrays import record_to_arrays, record_to_state_dict, state_dict_to_record
from fedspecial.flower.grid import Delivery, duplicated, lost
from fedspecial.flower.strategy.strategy import RoundError

CLIENTS = 4


def inner(kind: type[Strategy] = FedAvg, clients: int = CLIENTS, **settings: Any) -> Strategy:
    return kind(min_train_nodes=clients, min_available_nodes=clients, fraction_evaluate=0.0, **settings)


def grid(app: ClientApp | None = None, **settings: Any) -> InProcessGrid:
    return InProcessGrid(app or moving_app(), nodes(CLIENTS), **settings)


def final(strategy: Strategy, rounds: int, model: Any = MODEL, on: InProcessGrid | None = None) -> dict[str, Any]:
    result = strategy.start(on or grid(), record(model), num_rounds=rounds)
    return record_to_arrays(result.arrays)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        one[k].dtype == other[k].dtype and np.array_equal(one[k], other[k]) for k in one
    )


class Ordered(FedAvg):
    """FedAvg in the order of nodes: Flower shuffles them, and float sums depend on the order."""

    def configure_train(self, *args: Any) -> Any:
        return sorted(super().configure_train(*args), key=lambda message: message.metadata.dst_node_id)


@pytest.mark.parametrize("kind", [Ordered, FedMedian])
def test_zero_lambda_is_the_inner_strategy(kind: type[Strategy]) -> None:
    class Plain(kind):  # type: ignore[misc, valid-type]
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            config["task"], config["task-round"] = 1, server_round
            return super().configure_train(server_round, arrays, config, grid)

    weights = {0: 1.0, 1: 3.0, 2: 2.0, 3: 5.0}
    on = [grid(moving_app(weights)) for _ in range(2)]
    plain = final(inner(Plain), 3, on=on[0])
    wrapped = final(SpecialStrategy(inner(kind), lam=0.0), 3, on=on[1])
    assert same(plain, wrapped)


def test_the_model_follows_the_closed_form_over_tasks_and_rounds() -> None:
    lam, rate, tasks, rounds = 0.7, 1.3, 3, 4
    got = final(SpecialStrategy(inner(), lam=lam, server_lr=rate, rounds_per_task=rounds), tasks * rounds)
    theta = {k: v.astype(np.float64) for k, v in MODEL.items()}
    for task in range(1, tasks + 1):
        anchor = theta
        for rnd in range(1, rounds + 1):
            moved = [move(theta, task, rnd, client) for client in range(CLIENTS)]
            bar = {k: v + rate * (sum(m[k] for m in moved) / CLIENTS - v) for k, v in theta.items()}
            theta = {k: (v + lam * anchor[k]) / (1 + lam) for k, v in bar.items()} if task > 1 else bar
    for name, value in theta.items():
        np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-6)


def test_begin_task_and_rounds_per_task_give_the_same_model() -> None:
    by_count = final(SpecialStrategy(inner(), rounds_per_task=2), 6)
    strategy, arrays = SpecialStrategy(inner()), record(MODEL)
    for _ in range(3):
        strategy.begin_task()
        arrays = strategy.start(grid(), arrays, num_rounds=2).arrays
    assert same(by_count, record_to_arrays(arrays))


def test_the_order_of_arrival_does_not_matter() -> None:
    """Bit for bit, for every order of requests and for other node ids."""
    seen = []
    for first, order in ((100, 1), (900, -1)):

        class Shuffled(FedAvg):
            def configure_train(self, *args: Any, order: int = order) -> Any:
                return sorted(super().configure_train(*args), key=lambda m: order * m.metadata.dst_node_id)

        seen.append(final(SpecialStrategy(inner(Shuffled), rounds_per_task=2), 4, on=grid(first_node=first)))
    assert same(*seen)


def test_counters_stay_counters() -> None:
    got = final(SpecialStrategy(inner(), rounds_per_task=1), 2, WITH_COUNTER)
    assert got["batches"].dtype == np.int64
    # Each round adds the mean of 0, 1, 2, 3, rounded to even: 1.5 → 4.5 → 4, and 10.5 → 10; then 5.5 → 6, 11.5 → 12.
    assert got["batches"].tolist() == [6, 12]


def test_bfloat16_is_sent_exactly() -> None:
    state = {"w": torch.randn(4, 3).bfloat16(), "n": torch.tensor(3), "h": torch.randn(2).half()}
    back = record_to_state_dict(state_dict_to_record(state), state)
    assert all(back[k].dtype == state[k].dtype and torch.equal(back[k], state[k]) for k in state)


def test_clients_receive_task_and_round() -> None:
    received: list[tuple[int, int]] = []
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = message.content["config"]
        received.append((config["task"], config["task-round"]))
        return reply_with(message, MODEL, 0)

    strategy = SpecialStrategy(inner(clients=1), rounds_per_task=2)
    strategy.start(InProcessGrid(app, nodes(1)), record(MODEL), num_rounds=3)
    assert received == [(1, 1), (1, 2), (2, 1)]


def faulty(fault: Any, **settings: Any) -> SpecialStrategy:
    on = grid()
    on.faults[101] = fault
    strategy = SpecialStrategy(inner(), **settings)
    strategy.start(on, record(MODEL), num_rounds=1)
    return strategy


def poisoned(change: Any) -> Any:
    def fault(request: Message, reply: Message) -> list[Delivery]:
        change(reply)
        return [Delivery(reply)]

    return fault


def test_the_name_that_a_client_gives_itself_cannot_forge_a_log() -> None:
    def rename(reply: Message) -> None:
        reply.content["metrics"] = MetricRecord({"num-examples": float("nan")})
        reply.content["config"] = ConfigRecord({"client-id": "x\n2026-11-18 INFO: published\x1b[2J" + 1000 * "y"})

    (name,) = faulty(poisoned(rename), quorum=0.5).refusals
    assert isinstance(name, str)
    assert name.startswith("x 2026-11-18 INFO: published [2J")
    assert len(name) <= 101


def put(**values: Any) -> Any:
    return poisoned(lambda reply: reply.content["arrays"].update({k: Array(v) for k, v in values.items()}))


def claim_too_much(reply: Message) -> None:
    array = reply.content["arrays"]["weight"]
    reply.content["arrays"]["weight"] = Array("float32", (3, 4), array.stype, array.data[:-8])


def break_weight(reply: Message) -> None:
    reply.content["metrics"]["num-examples"] = float("nan")


FAULTS = {
    "NaN": (put(weight=np.full((3, 4), np.nan, np.float32)), "'weight' contains NaN"),
    "shape": (put(weight=np.zeros((4, 3), np.float32)), "'weight' is float32 (4, 3), but float32 (3, 4) was sent"),
    "type": (put(bias=np.zeros(5, np.float32)), "'bias' is float32 (5,), but float64 (5,)"),
    "unknown": (put(more=np.zeros(1)), "'more' was not sent"),
    "missing": (poisoned(lambda reply: reply.content["arrays"].pop("bias")), "'bias' is missing"),
    "cut": (poisoned(claim_too_much), "'weight' claims 12 values, but has 40 bytes"),
    "weight": (poisoned(break_weight), "num-examples=nan is not a valid weight"),
    "lost": (lost, "no reply before the deadline"),
    "duplicated": (duplicated, "it is a duplicate"),
    "no numbers": (put(weight=np.zeros((3, 4), "V4")), "send numbers (bfloat16 as float32)"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_an_unusable_reply_is_refused_and_counted_and_the_round_continues(kind: str) -> None:
    fault, reason = FAULTS[kind]
    strategy = faulty(fault)
    (counted,) = strategy.refusals.values()
    assert sum(counted.values()) == 1
    assert reason in next(iter(counted))
    others = [0, 1, 2, 3] if kind == "duplicated" else [0, 2, 3]
    expected = sum(move(MODEL, 1, 1, client)["bias"] for client in others) / len(others)
    np.testing.assert_allclose(strategy.theta["bias"], expected)


@pytest.mark.parametrize("kind", sorted(FAULTS.keys() - {"duplicated"}))
def test_a_round_without_a_quorum_is_never_completed(kind: str) -> None:
    fault, reason = FAULTS[kind]
    with pytest.raises(RoundError, match=r"3 of 4 replies are usable, quorum=0\.9") as error:
        faulty(fault, quorum=0.9)
    assert reason in str(error.value)


def test_an_exception_at_a_client_is_reported_with_its_name() -> None:
    app, healthy = ClientApp(), moving_app()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 2:
            raise FileNotFoundError("no scans here")
        return healthy(message, context)

    strategy = SpecialStrategy(inner())
    strategy.start(grid(app), record(MODEL), num_rounds=1)
    assert dict(strategy.refusals["node 102"]) == {"the client failed: FileNotFoundError: no scans here": 1}


def test_no_replies_at_all_are_an_error_not_a_finished_run() -> None:
    on = grid()
    on.faults = dict.fromkeys(on.get_node_ids(), lost)
    with pytest.raises(RoundError, match="0 of 4"):
        SpecialStrategy(inner()).start(on, record(MODEL), num_rounds=2)


def test_a_round_without_an_average_is_not_anchored_and_not_counted() -> None:
    class Lazy(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return (None, None) if server_round == 2 else super().aggregate_train(server_round, replies)

    strategy = SpecialStrategy(inner(Lazy), rounds_per_task=2)
    strategy.start(grid(), record(MODEL), num_rounds=3)
    assert (strategy.task, strategy.rounds_done) == (1, 2)
    assert same(strategy.theta, final(SpecialStrategy(inner(), rounds_per_task=2), 2))


def test_an_invalid_average_ends_the_run() -> None:
    class Wild(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return record({**MODEL, "bias": np.full(5, np.inf)}), MetricRecord()

    with pytest.raises(RoundError, match="average of 'bias'"):
        SpecialStrategy(inner(Wild)).start(grid(), record(MODEL), num_rounds=1)


@pytest.mark.parametrize("stop", range(1, 6))
def test_a_resumed_run_ends_with_the_same_model(stop: int, tmp_path: Path) -> None:
    whole = final(SpecialStrategy(inner(), rounds_per_task=2), 6, WITH_COUNTER)
    path = tmp_path / "state.safetensors"
    final(SpecialStrategy(inner(), rounds_per_task=2, checkpoint=path), stop, WITH_COUNTER)
    resumed = SpecialStrategy(inner(), rounds_per_task=2)
    arrays = resumed.load(path)
    assert same(whole, record_to_arrays(resumed.start(grid(), arrays, num_rounds=6 - stop).arrays))


@pytest.mark.parametrize("state", ["{}", "[]", "1", "{"])
def test_a_safetensors_file_of_another_program_is_refused(tmp_path: Path, state: str) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"theta/w": np.zeros(1)}, path, {"fedspecial": state})
    with pytest.raises(InputError, match="is not a checkpoint of SpecialStrategy"):
        SpecialStrategy(inner()).load(path)


def test_a_checkpoint_of_another_run_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    final(SpecialStrategy(inner(), checkpoint=path), 1)
    with pytest.raises(InputError, match=r"lam=0.5: the run in .* has lam=0.25"):
        SpecialStrategy(inner(), lam=0.5).load(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="truncated"):
        SpecialStrategy(inner()).load(path)
    with pytest.raises(InputError, match="does not exist"):
        SpecialStrategy(inner()).load(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"lam": -1.0}, "lam=-1.0"),
        ({"lam": float("nan")}, "lam=nan"),
        ({"server_lr": float("inf")}, "server_lr=inf"),
        ({"quorum": 0.0}, "quorum=0.0"),
        ({"quorum": 1.5}, "quorum=1.5"),
        ({"rounds_per_task": 0}, "rounds_per_task=0"),
    ],
)
def test_invalid_settings_of_the_strategy_are_named(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        SpecialStrategy(inner(), **settings)


def test_evaluation_is_delegated_and_names_the_task() -> None:
    avg = FedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    result = SpecialStrategy(avg, rounds_per_task=1).start(grid(), record(MODEL), num_rounds=2)
    assert [metrics["task"] for metrics in result.evaluate_metrics_clientapp.values()] == [1.0, 2.0]


def test_arrays_in_another_order_are_sorted() -> None:
    """Flower's wrappers match arrays by position, so a record in another order would mix them up."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return reply_with(message, dict(reversed(MODEL.items())), 0)

    class Watching(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            assert [list(reply.content["arrays"]) for reply in replies] == [list(MODEL)]
            return super().aggregate_train(server_round, replies)

    got = final(SpecialStrategy(inner(Watching, clients=1)), 1, on=InProcessGrid(app, nodes(1)))
    assert same(got, MODEL)


def test_a_reply_to_an_earlier_round_is_refused() -> None:
    """It is late, regardless of its content."""
    kept: list[Message] = []

    def keep(request: Message, reply: Message) -> list[Delivery]:
        kept.append(reply)
        return [Delivery(reply)] if len(kept) == 1 else [Delivery(kept[0])]

    on = grid()
    on.faults[100] = keep
    strategy = SpecialStrategy(inner())
    strategy.start(on, record(MODEL), num_rounds=2)
    reasons = list(itertools.chain.from_iterable(strategy.refusals.values()))
    assert "it does not belong to a request of this round (late, or from another run)" in reasons


def test_unused_records_in_a_reply_are_accepted() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content = {"arrays": record(MODEL), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict({**content, "about": ConfigRecord({"client-id": "north"})}), reply_to=message)

    strategy = SpecialStrategy(inner(clients=1))
    assert same(final(strategy, 1, on=InProcessGrid(app, nodes(1))), MODEL)
    assert not strategy.refusals
