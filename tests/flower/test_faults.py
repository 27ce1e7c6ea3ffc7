"""No silent failure: late, duplicate, foreign, invalid and missing replies are refused, named and counted."""

from __future__ import annotations

import fcntl
import os
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
    full_disk,
    grid_of,
    in_training,
    modified,
    reasons_of,
    rounds_of,
    with_header,
    with_vector,
)
from flwr.app import Message

from fedspecial.core.events import of_kind, read_events
from fedspecial.engine.clients.client import ClientRunner
from fedspecial.errors import InputError
from fedspecial.flower.app.wire import record_to_tensors, tensors_to_record
from fedspecial.flower.governance.audit import read_lines, verify
from fedspecial.flower.grid import Delivery, duplicated, late, lost
from fedspecial.runs import directory

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")


@pytest.fixture(scope="module")
def undisturbed(rendered: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hash of the model of a federation without faults."""
    return str(finished(federate(tmp_path_factory.mktemp("undisturbed")))["model_sha256"])


def test_the_request_of_a_lost_reply_is_repeated(undisturbed: str, tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = dict.fromkeys(grid.get_node_ids(), LostOnce())
    run = federate(tmp_path, grid=grid, quorum=1.0)
    assert finished(run)["model_sha256"] == undisturbed
    assert set().union(*reasons_of(run).values()) == {"no reply before the deadline"}


def test_with_a_quorum_no_request_is_repeated(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = {grid.get_node_ids()[1]: in_training(lost)}
    run = federate(tmp_path, grid=grid, quorum=0.75, retries=5, **SHORT)
    assert finished(run)["refusals"] == {"south": 1}
    assert rounds_of(run)[0]["outcome"] == "completed"


def test_without_a_quorum_the_model_is_unchanged_and_no_round_is_completed(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = dict.fromkeys(grid.get_node_ids(), in_training(lost))
    run = federate(tmp_path, grid=grid, on_no_quorum="skip")
    assert {line["outcome"] for line in rounds_of(run)} == {"skipped"}
    assert all(line["model_before"] == line["model_after"] for line in rounds_of(run))
    assert all(event["held"] for event in of_kind(read_events(run / "events.jsonl"), "round"))


@pytest.mark.parametrize(
    ("policy", "requests"), [({"on_no_quorum": "stop"}, 1), ({"on_no_quorum": "retry", "retries": 2}, 3)]
)
def test_a_run_stopped_without_a_quorum_can_continue_to_the_same_model(
    policy: dict[str, Any], requests: int, undisturbed: str, tmp_path: Path
) -> None:
    grid = grid_of(tmp_path)
    grid.faults = dict.fromkeys(grid.get_node_ids(), LostBetween(4, 3 + 3 * requests))
    with pytest.raises(
        InputError,
        match=r"no quorum in task 1 round 2 \(0 of 3 replies usable\).*site \w+: no reply before the deadline",
    ):
        federate(tmp_path, grid=grid, quorum=1.0, **policy)
    grid.faults = {}
    run = federate(tmp_path, grid=grid, quorum=1.0, **policy)
    assert finished(run)["model_sha256"] == undisturbed
    attempts = [(line["round"], line["attempt"], line["outcome"]) for line in rounds_of(run) if line["task"] == 1]
    assert attempts == [(0, 1, "completed"), (1, 1, "failed"), (1, 2, "completed")]
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


def test_duplicate_and_late_replies_are_refused_and_counted(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = dict(zip(grid.get_node_ids(), (in_training(duplicated), in_training(late(4))), strict=False))
    run = federate(tmp_path, grid=grid, retries=0, clients_per_round=4)
    assert reasons_of(run)["north"] == {"the reply is a duplicate"}
    assert reasons_of(run)["south"] == {"no reply before the deadline", "the reply arrived after the deadline"}
    assert finished(run)["refusals"]["north"] == 4
    assert {update["site"] for line in rounds_of(run) for update in line["updates"]} == {"north", "west", "east"}


def nan_at_three(vector: Any) -> Any:
    vector[3] = float("nan")
    return vector


def renamed(reply: Message) -> None:
    reply.content["arrays"]["x"] = reply.content["arrays"].pop("theta")


FAULTS = {
    "nan": (with_vector(nan_at_three), "contains NaN or Inf"),
    "short": (with_vector(lambda vector: vector[:-1]), "was sent"),
    "double precision": (with_vector(lambda vector: vector.double()), "'theta' is float64"),
    "another name": (renamed, "'theta' is missing"),
    "nothing": (lambda reply: reply.content.pop("arrays"), "the reply contains no vectors"),
    "foreign task": (with_header(task=2), "the reply is for task 2 round 1"),
    "another round": (with_header(round=5), "the reply is for task 1 round 6"),
    "another client": (with_header(client=0), "the reply is from client 0"),
    "no work": (with_header(steps=0), "it claims 0 steps"),
    "weight below zero": (with_header(samples=-7), "the header of the reply is invalid"),
    "not a number": (with_header(samples="all"), "the header of the reply is invalid"),
    "unknown words": (with_header(more=1), "the header of the reply is invalid"),
    "two lines": (with_header(problem="full\n2026 INFO all is well"), "full 2026 INFO all is well"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_an_unusable_reply_is_refused_with_a_reason(kind: str, tmp_path: Path) -> None:
    change, reason = FAULTS[kind]
    grid = grid_of(tmp_path)
    grid.faults = {grid.get_node_ids()[2]: modified(change)}
    run = federate(tmp_path, grid=grid, **SHORT)
    (line,) = rounds_of(run)
    assert [update["site"] for update in line["updates"]] == ["north", "south", "east"]
    assert [refusal["site"] for refusal in line["refusals"]] == ["west"]
    assert reason in line["refusals"][0]["reason"]
    assert finished(run)["refusals"] == {"west": 1}


def test_an_oversized_reply_is_refused_without_being_read(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    with pytest.raises(InputError, match=r"0 of 4 replies usable.*the reply has \d+ bytes, the limit is 1000"):
        federate(tmp_path, grid=grid, **SHORT, max_reply_megabytes=0.001, on_no_quorum="stop")


def test_more_correct_predictions_than_samples_are_refused(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)

    def exaggerate(request: Any, reply: Any) -> Any:
        if request.metadata.message_type == "evaluate":
            with_header(counts={"1": [9, 3]})(reply)
        return duplicated(request, reply)[:1]

    grid.faults = {grid.get_node_ids()[0]: exaggerate}
    run = federate(tmp_path, grid=grid, **SHORT)
    assert finished(run)["refusals"] == {"north": 1}


@pytest.mark.parametrize("redact", [True, False])
def test_an_exception_at_a_site_is_logged_with_the_sites_name(
    redact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train = ClientRunner.train

    def broken(self: ClientRunner, client: int, *rest: Any) -> Any:
        if client == 1:
            raise RuntimeError("the disk is full")
        return train(self, client, *rest)

    monkeypatch.setattr(ClientRunner, "train", broken)
    with caplog.at_level("WARNING", logger="fedspecial.flower"):
        federate(tmp_path, grid=grid_of(tmp_path, redact_errors=redact), **SHORT)
    details = "the details are in the site's log" if redact else "RuntimeError: the disk is full"
    assert caplog.messages == [f"site south: the site failed (failed, count 1): {details}"]
    assert "RuntimeError: the disk is full" in (tmp_path / "site-1" / "site.log").read_text()


def test_two_nodes_cannot_be_one_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid, requests = grid_of(tmp_path, [*SITES, "north"]), set()

    def watch(request: Message, reply: Message) -> list[Delivery]:
        requests.add((request.metadata.dst_node_id, request.metadata.message_type))
        return [Delivery(reply)]

    first, *_, second = grid.get_node_ids()
    grid.faults = {first: watch, second: watch}
    with caplog.at_level("WARNING", logger="fedspecial.flower"):
        federate(tmp_path, grid=grid, **SHORT)
    assert [record.getMessage() for record in caplog.records] == [
        "node north refused: 'north' is already connected at another node"
    ]
    assert {node for node, kind in requests if kind == "train"} == {first}


def test_a_node_cannot_claim_another_site_than_its_registered_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(tmp_path, ["south", *SITES[1:]], names=SITES)
    with (
        caplog.at_level("WARNING", logger="fedspecial.flower"),
        pytest.raises(InputError, match="only 3 sites connected"),
    ):
        federate(tmp_path, grid=grid, **SHORT, quorum=1.0, wait_seconds=0.3)
    message = "node north refused: it claims to be 'south', but is registered as 'north'"
    assert [record.getMessage() for record in caplog.records] == [message]


def test_a_site_that_reconnects_takes_part_again(undisturbed: str, tmp_path: Path) -> None:
    """Its node has another id then; the round waits for the site if the quorum needs it."""
    grid = grid_of(tmp_path)
    nodes, gone = grid.get_node_ids(), []

    def leaves(request: Any, reply: Any) -> Any:
        gone.append(request.metadata.dst_node_id)
        grid.contexts[999] = grid.contexts.pop(nodes[2])
        grid.faults = {}
        return lost(request, reply)

    grid.faults = {nodes[2]: in_training(leaves)}
    run = federate(tmp_path, grid=grid, quorum=1.0)
    assert gone == [nodes[2]]
    assert finished(run)["model_sha256"] == undisturbed


def test_the_audit_log_has_size_hash_and_norm_of_every_update(tmp_path: Path) -> None:
    (line,) = rounds_of(federate(tmp_path, **SHORT))
    for update in line["updates"]:
        assert re.fullmatch("[0-9a-f]{64}", update["sha256"])
        assert update["bytes"] > 1000
        assert update["norm"] > 0
    assert line["requested"] == list(SITES)
    assert line["model_before"] != line["model_after"]


def cut_means(reply: Message) -> None:
    uploads = record_to_tensors(reply.content["uploads"])
    reply.content["uploads"] = tensors_to_record({**uploads, "means": uploads["means"][:, :3].clone()})


QUERY_FAULTS = {
    "srfdil": ("means", cut_means, "'means': (1, 3, 16), "),
    "pfeddil": ("choose", with_header(numbers={"slot": 7}), "it chose {'slot': 7} of the slots [1]"),
}


@pytest.mark.parametrize("method", QUERY_FAULTS)
def test_an_invalid_query_reply_between_tasks_is_refused_and_audited_and_the_run_continues(
    method: str, tmp_path: Path
) -> None:
    query, change, reason = QUERY_FAULTS[method]
    grid = grid_of(tmp_path)

    def fault(request: Message, reply: Message) -> list[Delivery]:
        if f'"query": "{query}"' in str(request.content["config"]["request"]):
            change(reply)
        return [Delivery(reply)]

    grid.faults = {grid.get_node_ids()[2]: fault}
    run = federate(tmp_path, method, grid=grid)
    lines = [line for line in read_lines(run / "audit.jsonl") if line["event"] == "task_boundary"]
    assert {refusal["site"] for line in lines for refusal in line["refusals"]} == {"west"}
    assert reason in lines[0]["refusals"][0]["reason"]
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).refusals == {"west": len(lines)}
    assert finished(run)["refusals"] == {"west": len(lines)}


@pytest.mark.parametrize("room", [2500, 6000])
def test_a_full_disk_of_the_server_is_one_line_and_the_run_goes_on_when_there_is_room(
    room: int, tmp_path: Path
) -> None:
    whole = federate(tmp_path / "whole", **SHORT)
    with (
        full_disk(room),
        pytest.raises(InputError, match=r"run: it cannot be written \(File too large\).*start the run"),
    ):
        federate(tmp_path, **SHORT)
    assert finished(federate(tmp_path, **SHORT))["model_sha256"] == finished(whole)["model_sha256"]


def test_a_server_that_comes_second_does_not_remove_the_folder_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found no folder; the other one has claimed it since."""
    create, locks = directory.create, []

    def overtaken(settings: Any) -> Path:
        folder = create(settings)
        locks.append(os.open(folder, os.O_RDONLY))
        fcntl.flock(locks[0], fcntl.LOCK_EX)
        return folder

    monkeypatch.setattr(directory, "create", overtaken)
    with pytest.raises(InputError, match="another process is working on this run"):
        federate(tmp_path, **SHORT)
    os.close(locks[0])
    assert (tmp_path / "run" / "config.yaml").exists()
