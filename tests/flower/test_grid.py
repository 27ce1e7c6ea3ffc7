"""The in-process grid behaves like Flower's own: replies arrive when pulled, nodes share no state."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedspecial.flower import InProcessGrid
from fedspecial.flower.grid import duplicated, late, lost
from fedspecial.flower.strategy.replies import permanent_names

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Counts its own calls and modifies the message it received."""
    seen = context.state.setdefault("seen", MetricRecord({"calls": 0}))
    seen["calls"] += 1
    text = message.content["config"]["text"]
    message.content["config"]["text"] = "modified"
    if text == "fail":
        raise ValueError("as requested")
    metrics = MetricRecord({"calls": seen["calls"], "number": context.node_config["number"]})
    return Message(RecordDict({"reply": metrics, "received": ConfigRecord({"text": text})}), reply_to=message)


@pytest.fixture
def grid() -> InProcessGrid:
    return InProcessGrid(app, [{"number": 7}, {"number": 8}], names=["north", "south"])


def requests(grid: InProcessGrid, text: str = "hello") -> list[Message]:
    content = RecordDict({"config": ConfigRecord({"text": text})})
    return [Message(content, node, "train") for node in grid.get_node_ids()]


def replied(replies: Any) -> list[tuple[int, int]]:
    return [(reply.content["reply"]["number"], reply.content["reply"]["calls"]) for reply in replies]


def test_every_node_has_its_own_config_and_state(grid: InProcessGrid) -> None:
    assert replied(grid.send_and_receive(requests(grid))) == [(7, 1), (8, 1)]
    assert replied(grid.send_and_receive(requests(grid))) == [(7, 2), (8, 2)]


def test_nodes_cannot_modify_each_others_messages(grid: InProcessGrid) -> None:
    received = [reply.content["received"]["text"] for reply in grid.send_and_receive(requests(grid))]
    assert received == ["hello", "hello"]


def test_a_reply_is_computed_when_it_is_pulled(grid: InProcessGrid) -> None:
    replies = iter(grid.pull_messages(grid.push_messages(requests(grid))))
    next(replies)
    assert ["seen" in context.state for context in grid.contexts.values()] == [True, False]


def test_an_exception_becomes_an_error_reply(grid: InProcessGrid) -> None:
    for reply in grid.send_and_receive(requests(grid, "fail")):
        assert reply.has_error()
        assert reply.error.reason == "ValueError: as requested"


def test_a_lost_reply_never_arrives(grid: InProcessGrid) -> None:
    grid.faults[100] = lost
    assert replied(grid.send_and_receive(requests(grid))) == [(8, 1)]


def test_a_duplicated_reply_arrives_twice(grid: InProcessGrid) -> None:
    grid.faults[100] = duplicated
    assert replied(grid.send_and_receive(requests(grid))) == [(7, 1), (7, 1), (8, 1)]


def test_a_late_reply_arrives_after_its_number_of_pulls(grid: InProcessGrid) -> None:
    grid.faults[100] = late(2)
    names = grid.push_messages(requests(grid))
    assert [replied(grid.pull_messages(names)) for _ in range(4)] == [[(8, 1)], [], [(7, 1)], []]
    assert replied(grid.send_and_receive(requests(grid))) == [(8, 2), (7, 2)]
    assert replied(grid.send_and_receive(requests(grid), timeout=0)) == [(8, 3)]


def test_nodes_have_their_names(grid: InProcessGrid) -> None:
    assert permanent_names(grid) == {100: "north", 101: "south"}


def test_nodes_without_a_unique_name_are_identified_by_their_key() -> None:
    nameless = InProcessGrid(app, [{}, {}, {}], names=["twin", "twin"])

    class Keyed(InProcessGrid):
        def get_nodes(self) -> list[Any]:
            nodes = nameless.get_nodes()
            for node in nodes[:2]:
                node.public_key = f"key of {node.node_id}".encode()
            return nodes

    names = permanent_names(Keyed(app, []))
    assert set(names) == {100, 101}
    assert len(set(names.values())) == 2
    assert all(name.startswith("key-") for name in names.values())
