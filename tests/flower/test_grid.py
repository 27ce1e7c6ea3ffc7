"""The grid in this process behaves as Flower's own: replies come when pulled, nodes share nothing."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedspecial.flower import InProcessGrid
from fedspecial.flower.app.grid import doubled, late, lost
from fedspecial.flower.app.replies import lasting_names

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Counts its own calls, and spoils the message it was given."""
    seen = context.state.setdefault("seen", MetricRecord({"calls": 0}))
    seen["calls"] += 1
    told = message.content["config"]["told"]
    message.content["config"]["told"] = "spoiled"
    if told == "fail":
        raise ValueError("asked to")
    answer = MetricRecord({"calls": seen["calls"], "number": context.node_config["number"]})
    return Message(RecordDict({"answer": answer, "heard": ConfigRecord({"told": told})}), reply_to=message)


@pytest.fixture
def grid() -> InProcessGrid:
    return InProcessGrid(app, [{"number": 7}, {"number": 8}], names=["north", "south"])


def questions(grid: InProcessGrid, told: str = "hello") -> list[Message]:
    content = RecordDict({"config": ConfigRecord({"told": told})})
    return [Message(content, node, "train") for node in grid.get_node_ids()]


def answers(replies: Any) -> list[tuple[int, int]]:
    return [(reply.content["answer"]["number"], reply.content["answer"]["calls"]) for reply in replies]


def test_every_node_answers_with_its_own_config_and_its_own_state(grid: InProcessGrid) -> None:
    assert answers(grid.send_and_receive(questions(grid))) == [(7, 1), (8, 1)]
    assert answers(grid.send_and_receive(questions(grid))) == [(7, 2), (8, 2)]


def test_nodes_cannot_spoil_each_others_messages(grid: InProcessGrid) -> None:
    heard = [reply.content["heard"]["told"] for reply in grid.send_and_receive(questions(grid))]
    assert heard == ["hello", "hello"]


def test_a_reply_is_computed_when_it_is_pulled(grid: InProcessGrid) -> None:
    replies = iter(grid.pull_messages(grid.push_messages(questions(grid))))
    next(replies)
    assert ["seen" in context.state for context in grid.contexts.values()] == [True, False]


def test_an_exception_becomes_an_error_reply(grid: InProcessGrid) -> None:
    for reply in grid.send_and_receive(questions(grid, "fail")):
        assert reply.has_error()
        assert reply.error.reason == "ValueError: asked to"


def test_a_lost_reply_never_comes(grid: InProcessGrid) -> None:
    grid.faults[100] = lost
    assert answers(grid.send_and_receive(questions(grid))) == [(8, 1)]


def test_a_doubled_reply_comes_twice(grid: InProcessGrid) -> None:
    grid.faults[100] = doubled
    assert answers(grid.send_and_receive(questions(grid))) == [(7, 1), (7, 1), (8, 1)]


def test_a_late_reply_comes_after_its_pulls(grid: InProcessGrid) -> None:
    grid.faults[100] = late(2)
    names = grid.push_messages(questions(grid))
    assert [answers(grid.pull_messages(names)) for _ in range(4)] == [[(8, 1)], [], [(7, 1)], []]
    assert answers(grid.send_and_receive(questions(grid))) == [(8, 2), (7, 2)]
    assert answers(grid.send_and_receive(questions(grid), timeout=0)) == [(8, 3)]


def test_nodes_bear_their_names(grid: InProcessGrid) -> None:
    assert lasting_names(grid) == {100: "north", 101: "south"}


def test_nodes_without_a_name_are_known_by_their_key() -> None:
    nameless = InProcessGrid(app, [{}, {}, {}], names=["twin", "twin"])

    class Keyed(InProcessGrid):
        def get_nodes(self) -> list[Any]:
            nodes = nameless.get_nodes()
            for node in nodes[:2]:
                node.public_key = f"key of {node.node_id}".encode()
            return nodes

    names = lasting_names(Keyed(app, []))
    assert set(names) == {100, 101}
    assert len(set(names.values())) == 2
    assert all(name.startswith("key-") for name in names.values())
