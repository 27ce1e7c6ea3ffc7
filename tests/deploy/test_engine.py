"""The same loop over Flower's messages: same seed, same data, same model, for every method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedspecial import methods
from fedspecial.config import preset_words
from fedspecial.core.events import of_kind, read_events
from fedspecial.deploy.audit import lines, verify
from fedspecial.deploy.client_app import make_client_app
from fedspecial.deploy.grid import InProcessGrid, doubled, late, lost
from fedspecial.deploy.server_app import end_task, serve
from fedspecial.errors import InputError
from worlds import learn_words

SITES = ("north", "south", "west", "east")
SMALL = {
    "benchmark": "digits-shift", "domains": "paper,neon", "cap": 160, "model": "cnn", "width": 4, "rounds": 2,
    "local_epochs": 1, "clients_per_round": 3, "min_per_client": 4, "eval_every": 0, "seed": 25,
}  # fmt: skip
POLICY = {"quorum": 0.5, "retries": 1, "answer_seconds": 0.6, "wait_seconds": 5.0, "max_drop": 1.0, "max_site_drop": 1.0}


def words_of(method: str) -> dict[str, Any]:
    own = preset_words("digits-shift")["methods"].get(method, {})
    return {**SMALL, "method": method, "hyper": " ".join(f"{k}={v}" for k, v in own.items())}


def grid_of(folder: Path) -> InProcessGrid:
    nodes = [{"site": site, "state": str(folder / f"site-{site}")} for site in SITES]
    return InProcessGrid(make_client_app(), nodes)


def federate(folder: Path, method: str = "special", grid: InProcessGrid | None = None, **words: Any) -> Path:
    config = {**words_of(method), **POLICY, "sites": ",".join(SITES), "out": str(folder / "run"), **words}
    return serve(grid or grid_of(folder), config)


def finished(run: Path) -> dict[str, Any]:
    return json.loads((run / "finished.json").read_text())


@pytest.mark.parametrize("method", methods.names())
def test_the_model_is_that_of_one_process_bit_for_bit(method: str, tmp_path: Path) -> None:
    over_flower = finished(federate(tmp_path, method))
    config = words_of(method)
    own = dict(pair.split("=") for pair in config.pop("hyper").split())
    alone = learn_words(tmp_path / "alone", **config, **own, clients=4, checkpoint_seconds=0)
    assert over_flower["model_sha256"] == alone.model_sha256
    assert over_flower["refusals"] == {}
    if not methods.find(method).personal:
        assert over_flower["matrix"] == alone.matrix


def test_a_lost_answer_is_asked_for_again(tmp_path: Path) -> None:
    whole = finished(federate(tmp_path / "whole"))
    grid = grid_of(tmp_path / "lossy")
    first = set(grid.get_node_ids())

    def lost_once(asked: Any, reply: Any) -> Any:
        node = asked.metadata.dst_node_id
        if asked.metadata.message_type == "train" and node in first:
            first.discard(node)
            return lost(asked, reply)
        return [d for d in doubled(asked, reply)][:1]

    grid.faults = dict.fromkeys(grid.get_node_ids(), lost_once)
    cut = finished(federate(tmp_path / "lossy", grid=grid, quorum=1.0, retries=3))
    assert cut["model_sha256"] == whole["model_sha256"]


def test_without_a_quorum_the_model_is_held_and_nothing_is_called_completed(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    deaf = lambda asked, reply: lost(asked, reply) if asked.metadata.message_type == "train" else doubled(asked, reply)[:1]  # noqa: E731
    grid.faults = dict.fromkeys(grid.get_node_ids(), deaf)
    run = federate(tmp_path, grid=grid, on_missing="hold", quorum=0.5)
    rounds = [line for line in lines(run / "audit.jsonl") if line["event"] == "round"]
    assert {line["outcome"] for line in rounds} == {"held"}
    assert all(line["model_before"] == line["model_after"] for line in rounds)
    assert all(event["held"] for event in of_kind(read_events(run / "events.jsonl"), "round"))


def test_without_a_quorum_the_run_may_stop_and_go_on_later_to_the_same_model(tmp_path: Path) -> None:
    whole = finished(federate(tmp_path / "whole"))
    grid, count = grid_of(tmp_path / "cut"), 0

    def deaf_in_the_second_round(asked: Any, reply: Any) -> Any:
        nonlocal count
        count += asked.metadata.message_type == "train"
        return lost(asked, reply) if 3 < count <= 6 else doubled(asked, reply)[:1]

    grid.faults = dict.fromkeys(grid.get_node_ids(), deaf_in_the_second_round)
    with pytest.raises(InputError, match="task 1 round 2 got 0 of 3 answers"):
        federate(tmp_path / "cut", grid=grid, on_missing="stop", quorum=1.0)
    grid.faults = {}
    run = federate(tmp_path / "cut", grid=grid, on_missing="stop", quorum=1.0)
    assert finished(run)["model_sha256"] == whole["model_sha256"]
    attempts = [(line["round"], line["attempt"], line["outcome"]) for line in lines(run / "audit.jsonl")
                if line["event"] == "round" and line["task"] == 1]  # fmt: skip
    assert attempts == [(0, 1, "completed"), (1, 1, "failed"), (1, 2, "completed")]
    assert verify(run / "audit.jsonl", finished(run)["head"]).sound


def test_doubled_and_late_answers_are_refused_and_counted(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    nodes = grid.get_node_ids()
    trains = lambda fault: lambda asked, reply: (fault if asked.metadata.message_type == "train" else (lambda a, r: doubled(a, r)[:1]))(asked, reply)  # noqa: E731
    grid.faults = {nodes[0]: trains(doubled), nodes[1]: trains(late(40))}
    run = federate(tmp_path, grid=grid, retries=0, clients_per_round=4, quorum=0.5)
    counted = finished(run)["refusals"]
    assert counted["north"] == 4
    assert counted["south"] >= 4
    reasons = {refusal["reason"] for line in lines(run / "audit.jsonl") if line["event"] == "round" for refusal in line["refusals"]}
    assert "it answers twice" in reasons
    assert "it did not answer in time" in reasons


def spoiled(change: Any) -> Any:
    def fault(asked: Any, reply: Any) -> Any:
        if asked.metadata.message_type == "train":
            change(reply)
        return doubled(asked, reply)[:1]

    return fault


def _nan(reply: Any) -> None:
    from fedspecial.deploy.wire import from_record, to_record

    vectors = from_record(reply.content["arrays"])
    vectors["theta"][3] = float("nan")
    reply.content["arrays"] = to_record(vectors)


def _short(reply: Any) -> None:
    from fedspecial.deploy.wire import from_record, to_record

    reply.content["arrays"] = to_record({"theta": from_record(reply.content["arrays"])["theta"][:-1]})


def _foreign(reply: Any) -> None:
    said = json.loads(reply.content["config"]["answer"])
    reply.content["config"]["answer"] = json.dumps({**said, "task": said["task"] + 1})


@pytest.mark.parametrize(
    ("change", "reason"),
    [(_nan, "holds NaN or infinity"), (_short, "was sent"), (_foreign, "it answers for task 2 round 1")],
)
def test_an_answer_that_cannot_be_used_is_refused_with_its_reason(change: Any, reason: str, tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = {grid.get_node_ids()[2]: spoiled(change)}
    run = federate(tmp_path, grid=grid, clients_per_round=4, retries=0, domains="paper", rounds=1)
    (line,) = [line for line in lines(run / "audit.jsonl") if line["event"] == "round"]
    assert [answer["site"] for answer in line["answers"]] == ["north", "south", "east"]
    assert [refusal["site"] for refusal in line["refusals"]] == ["west"]
    assert reason in line["refusals"][0]["reason"]


def test_a_clients_exception_reaches_the_server_with_the_sites_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fedspecial.engine.client import Workplace

    train = Workplace.train

    def broken(self: Workplace, client: int, *rest: Any) -> Any:
        if client == 1:
            raise RuntimeError("the scanner is on fire")
        return train(self, client, *rest)

    monkeypatch.setattr(Workplace, "train", broken)
    with caplog.at_level("WARNING", logger="fedspecial.deploy"):
        federate(tmp_path, clients_per_round=4, retries=0, domains="paper", rounds=1)
    assert any("south" in record.getMessage() and "the scanner is on fire" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("method", ["flwf2t", "srfdil"])
def test_a_server_that_dies_goes_on_to_the_same_model(method: str, tmp_path: Path) -> None:
    """Sites keep the states that the round began with until the server has written it down."""
    whole = finished(federate(tmp_path / "whole", method))
    config = {**words_of(method), **POLICY, "sites": ",".join(SITES), "out": str(tmp_path / "cut" / "run")}
    grid = grid_of(tmp_path / "cut")

    class Killed(BaseException):
        pass

    for when in ((1, 1), (2, 0)):
        def die(event: Any, when: tuple[int, int] = when) -> None:
            if event.event == "round" and (event.task, event.round) == when:
                raise Killed

        with pytest.raises(Killed):
            serve(grid, config, (die,))
    run = serve(grid, config)
    assert finished(run)["model_sha256"] == whole["model_sha256"]


def test_a_site_that_lost_a_payload_gets_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = finished(federate(tmp_path / "whole", "special-c", domains="paper,neon", rounds=3))
    from fedspecial.core.events import RoundFinished

    grid, folder = grid_of(tmp_path / "lossy"), tmp_path / "lossy"

    def forget(event: Any) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 0):
            for path in folder.glob("site-*/*/payloads/*"):
                path.unlink()

    config = {**words_of("special-c"), **POLICY, "sites": ",".join(SITES), "out": str(folder / "run"), "rounds": 3}
    run = serve(grid, config, (forget,))
    assert finished(run)["model_sha256"] == whole["model_sha256"]


def test_the_operator_may_end_a_task_early(tmp_path: Path) -> None:
    def say_so(event: Any) -> None:
        if event.event == "round" and (event.task, event.round) == (1, 0):
            assert end_task(tmp_path / "run") == 1

    config = {**words_of("special"), **POLICY, "sites": ",".join(SITES), "out": str(tmp_path / "run")}
    run = serve(grid_of(tmp_path), config, (say_so,))
    rounds = of_kind(read_events(run / "events.jsonl"), "round")
    assert [(r["task"], r["round"]) for r in rounds] == [(1, 0), (2, 0), (2, 1)]


def test_a_model_that_lost_an_earlier_domain_is_not_published(tmp_path: Path) -> None:
    run = federate(tmp_path, "fedavg", rounds=4, local_epochs=3, max_drop=0.0, max_site_drop=0.0)
    assert (run / "published" / "task-1" / "model.safetensors").exists()
    decision = json.loads((run / "promotion" / "task-2.json").read_text())
    matrix = finished(run)["matrix"]
    assert (matrix[1][0] < matrix[0][0]) == (not (run / "published" / "task-2").exists())
    assert decision["publish"] == (run / "published" / "task-2").exists()
    assert "paper" in decision["reason"]


def test_sites_with_folders_of_their_own(tmp_path: Path) -> None:
    import numpy as np

    generator = torch.Generator().manual_seed(0)
    for number, site in enumerate(SITES):
        folder = tmp_path / site
        folder.mkdir()
        for task, shift in (("first", 0.0), ("second", 1.0)):
            if (site, task) == ("east", "second"):
                continue
            y = torch.arange(24) % 2
            x = torch.randn(24, 5, generator=generator) * 0.3 + y[:, None] * 2 + shift + 0.01 * number
            np.savez(folder / f"{task}.npz", x_train=x[:16], y_train=y[:16], x_test=x[16:], y_test=y[16:])
    nodes = [{"site": site, "data": str(tmp_path / site), "state": str(tmp_path / site / "state")} for site in SITES]
    nodes[1] |= {"tasks": "first.npz,second.npz"}
    config = {
        **POLICY, "sites": ",".join(SITES), "tasks": "first,second", "classes": "a,b", "shape": "5", "kind": "table",
        "method": "special", "hyper": "lam=0.1", "model": "logistic", "rounds": 3, "client_lr": 0.1,
        "out": str(tmp_path / "run"),
    }  # fmt: skip
    run = serve(InProcessGrid(make_client_app(), nodes), config)
    matrix = finished(run)["matrix"]
    assert matrix[1][0] > 0.7
    refused = of_kind(read_events(run / "events.jsonl"), "update_refused")
    assert {(r["task"], r["client"], r["reason"]) for r in refused} == {(2, 3, "it holds no samples of this task")}


def test_two_nodes_cannot_be_one_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = [{"site": site, "state": str(tmp_path / f"{i}")} for i, site in enumerate([*SITES, "north"])]
    with caplog.at_level("WARNING", logger="fedspecial.deploy"):
        federate(tmp_path, grid=InProcessGrid(make_client_app(), nodes), domains="paper", rounds=1)
    assert any("'north' is here already" in record.getMessage() for record in caplog.records)
