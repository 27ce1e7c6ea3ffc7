"""Real processes over TLS: a federation gets tasks and sites, loses one, and one site's key is replaced."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deployments import PATIENT, add_site, deployed, submit, wait_for_end, wait_for_round
from flower_fixtures import finished, rounds_of
from test_membership import after, federate, grid_of, lines, write_data

from fedspecial.flower.app.membership import request_change
from fedspecial.flower.governance.audit import verify
from fedspecial.flower.ops.processes import CONNECTION, LocalFederation
from processes import fresh

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc"),
    pytest.mark.usefixtures("unpictured"),
]

THREE, TASKS = ("north", "south", "west"), ("first", "second", "third", "fourth")
ROUNDS = 2
DATA = {"classes": "a,b", "shape": "3,8,8", "kind": "image"}
SETTINGS = {"width": 4, "client_lr": 0.05, "batch_size": 8, "eval_every": 0}


def start(federation: LocalFederation, sites: Sequence[str], tasks: Sequence[str], rounds: int = ROUNDS) -> Path:
    """Start the run, or go on with it, with the sites and tasks of its beginning."""
    more = {**SETTINGS, "domains": None, "cap": None, "min_per_client": None}
    given = {"tasks": ",".join(tasks), "rounds": rounds, "hyper": "lam=0.25", "benchmark": "", **DATA}
    return submit(federation, sites, more, **given)


def changed(run: Path, command: str, name: str) -> None:
    done = fresh("flower", command, run, name)
    assert done.code == 0, done.stderr


def go_on(federation: LocalFederation, sites: Sequence[str], tasks: Sequence[str], rounds: int = ROUNDS) -> None:
    """Until the run is finished and no request waits; one that came at the very end waits for the next start."""
    run = federation.folder / "run"
    while not (run / "finished.json").exists() or list((run / "changes").glob("*.json")):
        start(federation, sites, tasks, rounds)
        wait_for_end(federation, run, 900)


def test_a_finished_federation_gets_tasks_and_a_site_and_loses_one(tmp_path: Path) -> None:
    """The audit chain is whole, and the model is that of the same sequence in one process, bit for bit."""
    data = tmp_path / "data"
    write_data(data, TASKS)
    with deployed(tmp_path / "real", THREE, data) as federation:
        run = start(federation, THREE, TASKS[:2])
        wait_for_end(federation, run, 900)
        first_head = finished(run)["audit_head"]
        changed(run, "add-task", "third")
        changed(run, "add-site", "east")
        add_site(federation, "east", data, warm=True)
        start(federation, THREE, TASKS[:2])
        wait_for_round(federation, run, 3, 0, 600)
        changed(run, "remove-site", "south")
        changed(run, "add-task", "fourth")
        wait_for_end(federation, run, 900)
        go_on(federation, THREE, TASKS[:2])

    asked = {(line["task"], line["round"]): line["requested"] for line in rounds_of(run)}
    assert len(asked) == len(rounds_of(run)) == len(TASKS) * ROUNDS
    assert [asked[1, 0], asked[2, 1], asked[3, 0], asked[4, 0], asked[4, 1]] == [
        *([[*THREE]] * 2),
        [*THREE, "east"],
        *([["north", "west", "east"]] * 2),
    ]
    assert {line["outcome"] for line in rounds_of(run)} == {"completed"}
    noted = [(line["event"], line["name"]) for line in lines(run, "task_added", "site_added", "site_removed")]
    added = [("task_added", "third"), ("site_added", "east"), ("site_removed", "south"), ("task_added", "fourth")]
    assert noted == added
    for head in (first_head, finished(run)["audit_head"]):
        assert verify(run / "audit.jsonl", head).intact
    assert finished(run)["model_sha256"] == in_one_process(tmp_path / "one", left_after(run))


def left_after(run: Path) -> tuple[int, int]:
    """The task and round after which south left, which a running server decides."""
    asked = [(line["task"], line["round"]) for line in rounds_of(run) if "south" in line["requested"]]
    return asked[-1]


def in_one_process(folder: Path, left: tuple[int, int]) -> str:
    folder.mkdir()
    grid = grid_of(folder, TASKS)
    settings: dict[str, Any] = {"grid": grid, "rounds": ROUNDS, "lam": 0.25, **PATIENT}
    run = federate(folder, **settings)
    for kind, name in (("task_added", "third"), ("site_added", "east")):
        request_change(run, kind, name)
    federate(folder, listener=after(folder, (*left, "site_removed", "south")), **settings)
    request_change(run, "task_added", "fourth")
    federate(folder, **settings)
    return str(finished(run)["model_sha256"])


def test_after_a_key_was_replaced_the_old_one_is_refused_and_the_log_has_both(tmp_path: Path) -> None:
    """The old key is refused by the server although the SuperLink still knows it, and then by the SuperLink, too."""
    data, two = tmp_path / "data", ("north", "south")
    write_data(data)
    with deployed(tmp_path / "real", two, data) as federation:
        run = start(federation, two, ["first"], 1)
        wait_for_end(federation, run, 900)
        done = fresh("flower", "revoke", run, "north", "--reason", "the laptop was stolen")
        assert done.code == 0, done.stderr
        before = contents(tmp_path / "real" / "sites" / "north")
        add_site(federation, "north", data, process="north-2", warm=True)
        federation.wait_for_nodes([*two, "north-2"], deadline=120)  # the old key is still connected
        changed(run, "add-task", "second")
        start(federation, two, ["first"], 1)
        wait_for_end(federation, run, 900)
        assert contents(tmp_path / "real" / "sites" / "north") == before
        federation.stop("north")
        federation.wait(lambda: federation.nodes_online() == 2, None, "the old node is still online", 120, pause=0.5)
        listed = json.loads(federation.run_command(["flwr", "supernode", "ls", CONNECTION, "--format", "json"]))
        (old,) = [node["node-id"] for node in listed["nodes"] if node["status"] != "online"]
        federation.run_command(["flwr", "supernode", "unregister", str(old), CONNECTION])
        key = federation.folder / "keys" / "north"
        stolen = ["flower-supernode", "--superlink", f"127.0.0.1:{federation.port}", "--auth-supernode-private-key"]
        assert federation.tls is not None
        stolen += [str(key), "--root-certificates", str(federation.tls.authority), "--port", "0"]
        assert federation.start("stolen", stolen).wait(120) != 0, federation.last_lines("stolen")

    assert [[update["site"] for update in line["updates"]] for line in rounds_of(run)] == [[*two]] * 2
    assert {line["outcome"] for line in rounds_of(run)} == {"completed"}
    keys = [(line["site"], line["number"]) for line in lines(run, "site_key")]
    assert sorted(keys) == [("north", 1), ("north", 2), ("south", 1)]
    (revoked,) = lines(run, "key_revoked")
    (first,) = [line for line in lines(run, "site_key") if (line["site"], line["number"]) == ("north", 1)]
    assert (revoked["key"], revoked["reason"]) == (first["key"], "the laptop was stolen")
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file that a site stores."""
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}
