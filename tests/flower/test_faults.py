"""Nothing silent: what is late, doubled, foreign, spoiled or missing is refused, named and counted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import (
    SHORT,
    SITES,
    LostBetween,
    LostOnce,
    federate,
    finished,
    grid_of,
    in_training,
    reasons_of,
    rounds_of,
    said_otherwise,
    spoiled,
    with_vector,
)
from flwr.app import Message

from fedspecial.core.events import of_kind, read_events
from fedspecial.engine.client import ClientRunner
from fedspecial.errors import InputError
from fedspecial.flower.app.grid import Delivery, doubled, late, lost
from fedspecial.flower.app.wire import from_record, to_record
from fedspecial.flower.governance.audit import lines, verify

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")


@pytest.fixture(scope="module")
def whole(rendered: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model of an undisturbed federation."""
    return str(finished(federate(tmp_path_factory.mktemp("whole")))["model_sha256"])


def test_a_lost_answer_is_asked_for_again(whole: str, tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = dict.fromkeys(grid.get_node_ids(), LostOnce())
    run = federate(tmp_path, grid=grid, quorum=1.0)
    assert finished(run)["model_sha256"] == whole
    assert set().union(*reasons_of(run).values()) == {"it did not answer in time"}


def test_with_a_quorum_nobody_is_waited_for_twice(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = {grid.get_node_ids()[1]: in_training(lost)}
    run = federate(tmp_path, grid=grid, quorum=0.75, retries=5, **SHORT)
    assert finished(run)["refusals"] == {"south": 1}
    assert rounds_of(run)[0]["outcome"] == "completed"


def test_without_a_quorum_the_model_is_held_and_nothing_is_called_completed(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = dict.fromkeys(grid.get_node_ids(), in_training(lost))
    run = federate(tmp_path, grid=grid, on_missing="hold")
    assert {line["outcome"] for line in rounds_of(run)} == {"held"}
    assert all(line["model_before"] == line["model_after"] for line in rounds_of(run))
    assert all(event["held"] for event in of_kind(read_events(run / "events.jsonl"), "round"))


@pytest.mark.parametrize(("policy", "asked"), [({"on_missing": "stop"}, 1), ({"on_missing": "retry", "retries": 2}, 3)])
def test_without_a_quorum_the_run_may_stop_and_go_on_later_to_the_same_model(
    policy: dict[str, Any], asked: int, whole: str, tmp_path: Path
) -> None:
    grid = grid_of(tmp_path)
    grid.faults = dict.fromkeys(grid.get_node_ids(), LostBetween(4, 3 + 3 * asked))
    with pytest.raises(InputError, match=r"task 1 round 2 got 0 of 3 answers.*site \w+: it did not answer in time"):
        federate(tmp_path, grid=grid, quorum=1.0, **policy)
    grid.faults = {}
    run = federate(tmp_path, grid=grid, quorum=1.0, **policy)
    assert finished(run)["model_sha256"] == whole
    attempts = [(line["round"], line["attempt"], line["outcome"]) for line in rounds_of(run) if line["task"] == 1]
    assert attempts == [(0, 1, "completed"), (1, 1, "failed"), (1, 2, "completed")]
    assert verify(run / "audit.jsonl", finished(run)["head"]).sound


def test_doubled_and_late_answers_are_refused_and_counted(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = dict(zip(grid.get_node_ids(), (in_training(doubled), in_training(late(4))), strict=False))
    run = federate(tmp_path, grid=grid, retries=0, clients_per_round=4)
    assert reasons_of(run)["north"] == {"it answers twice"}
    assert reasons_of(run)["south"] == {"it did not answer in time", "it answers late"}
    assert finished(run)["refusals"]["north"] == 4
    assert {answer["site"] for line in rounds_of(run) for answer in line["answers"]} == {"north", "west", "east"}


def nan_at_three(vector: Any) -> Any:
    vector[3] = float("nan")
    return vector


def renamed(reply: Message) -> None:
    reply.content["arrays"]["x"] = reply.content["arrays"].pop("theta")


SPOILED = {
    "nan": (with_vector(nan_at_three), "contains NaN or Inf"),
    "short": (with_vector(lambda vector: vector[:-1]), "was sent"),
    "double precision": (with_vector(lambda vector: vector.double()), "'theta' is float64"),
    "another name": (renamed, "'theta' is missing"),
    "nothing": (lambda reply: reply.content.pop("arrays"), "it carries no vectors"),
    "foreign task": (said_otherwise(task=2), "it answers for task 2 round 1"),
    "another round": (said_otherwise(round=5), "it answers for task 1 round 6"),
    "another client": (said_otherwise(client=0), "it answers as client 0"),
    "no work": (said_otherwise(steps=0), "it claims 0 steps"),
    "weight below zero": (said_otherwise(samples=-7), "its answer cannot be read"),
    "not a number": (said_otherwise(samples="all"), "its answer cannot be read"),
    "unknown words": (said_otherwise(more=1), "its answer cannot be read"),
    "two lines": (said_otherwise(problem="full\n2026 INFO all is well"), "full 2026 INFO all is well"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPOILED)
def test_an_answer_that_cannot_be_used_is_refused_with_its_reason(kind: str, tmp_path: Path) -> None:
    change, reason = SPOILED[kind]
    grid = grid_of(tmp_path)
    grid.faults = {grid.get_node_ids()[2]: spoiled(change)}
    run = federate(tmp_path, grid=grid, **SHORT)
    (line,) = rounds_of(run)
    assert [answer["site"] for answer in line["answers"]] == ["north", "south", "east"]
    assert [refusal["site"] for refusal in line["refusals"]] == ["west"]
    assert reason in line["refusals"][0]["reason"]
    assert finished(run)["refusals"] == {"west": 1}


def test_an_oversized_answer_is_not_looked_at(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    with pytest.raises(InputError, match=r"got 0 of 4 answers.*its answer has \d+ bytes, at most 1000 are looked at"):
        federate(tmp_path, grid=grid, **SHORT, max_megabytes=0.001, on_missing="stop")


def test_more_right_answers_than_samples_are_not_believed(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)

    def boast(asked: Any, reply: Any) -> Any:
        if asked.metadata.message_type == "evaluate":
            said_otherwise(counts={"1": [9, 3]})(reply)
        return doubled(asked, reply)[:1]

    grid.faults = {grid.get_node_ids()[0]: boast}
    run = federate(tmp_path, grid=grid, **SHORT)
    assert finished(run)["refusals"] == {"north": 1}


def test_a_clients_exception_reaches_the_server_with_the_sites_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train = ClientRunner.train

    def broken(self: ClientRunner, client: int, *rest: Any) -> Any:
        if client == 1:
            raise RuntimeError("the scanner is on fire")
        return train(self, client, *rest)

    monkeypatch.setattr(ClientRunner, "train", broken)
    with caplog.at_level("WARNING", logger="fedspecial.flower"):
        federate(tmp_path, **SHORT)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["site south: it failed: RuntimeError: the scanner is on fire"]


def test_two_nodes_cannot_be_one_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid, asked = grid_of(tmp_path, [*SITES, "north"]), set()

    def watch(question: Message, reply: Message) -> list[Delivery]:
        asked.add((question.metadata.dst_node_id, question.metadata.message_type))
        return [Delivery(reply)]

    first, *_, second = grid.get_node_ids()
    grid.faults = {first: watch, second: watch}
    with caplog.at_level("WARNING", logger="fedspecial.flower"):
        federate(tmp_path, grid=grid, **SHORT)
    assert [record.getMessage() for record in caplog.records] == [
        f"node {second} refused: 'north' is here already, at another node"
    ]
    assert {node for node, kind in asked if kind == "train"} == {first}


def test_a_node_is_believed_no_other_name_than_its_registered_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(tmp_path, ["south", *SITES[1:]], names=SITES)
    with (
        caplog.at_level("WARNING", logger="fedspecial.flower"),
        pytest.raises(InputError, match="3 sites came"),
    ):
        federate(tmp_path, grid=grid, **SHORT, quorum=1.0, wait_seconds=0.3)
    told = "node north refused: it says that it is 'south', but is registered as 'north'"
    assert [record.getMessage() for record in caplog.records] == [told]


def test_a_site_that_comes_back_takes_part_again(whole: str, tmp_path: Path) -> None:
    """Its node has another number then; the round waits for it where a quorum needs it."""
    grid = grid_of(tmp_path)
    nodes, gone = grid.get_node_ids(), []

    def leaves(asked: Any, reply: Any) -> Any:
        gone.append(asked.metadata.dst_node_id)
        grid.contexts[999] = grid.contexts.pop(nodes[2])
        grid.faults = {}
        return lost(asked, reply)

    grid.faults = {nodes[2]: in_training(leaves)}
    run = federate(tmp_path, grid=grid, quorum=1.0)
    assert gone == [nodes[2]]
    assert finished(run)["model_sha256"] == whole


def test_nothing_of_an_answer_is_hidden_from_the_audit_log(tmp_path: Path) -> None:
    (line,) = rounds_of(federate(tmp_path, **SHORT))
    for answer in line["answers"]:
        assert re.fullmatch("[0-9a-f]{64}", answer["sha256"])
        assert answer["bytes"] > 1000
        assert answer["norm"] > 0
    assert line["asked"] == list(SITES)
    assert line["model_before"] != line["model_after"]


def cut_means(reply: Message) -> None:
    uploads = from_record(reply.content["uploads"])
    reply.content["uploads"] = to_record({**uploads, "means": uploads["means"][:, :3].clone()})


AT_THE_BORDER = {
    "srfdil": ("means", cut_means, "'means': (1, 3, 16), "),
    "pfeddil": ("choose", said_otherwise(numbers={"slot": 7}), "it chose {'slot': 7} of the slots [1]"),
}


@pytest.mark.parametrize("method", AT_THE_BORDER)
def test_between_tasks_an_answer_of_another_form_is_refused_and_audited_and_the_run_goes_on(
    method: str, tmp_path: Path
) -> None:
    stage, change, reason = AT_THE_BORDER[method]
    grid = grid_of(tmp_path)

    def fault(asked: Message, reply: Message) -> list[Delivery]:
        if f'"stage": "{stage}"' in str(asked.content["config"]["request"]):
            change(reply)
        return [Delivery(reply)]

    grid.faults = {grid.get_node_ids()[2]: fault}
    run = federate(tmp_path, method, grid=grid)
    (line,) = [line for line in lines(run / "audit.jsonl") if line["event"] == "border"]
    assert [refusal["site"] for refusal in line["refusals"]] == ["west"]
    assert reason in line["refusals"][0]["reason"]
    assert verify(run / "audit.jsonl", finished(run)["head"]).refused == {"west": 1}
    assert finished(run)["refusals"] == {"west": 1}
