"""Rotation and revocation of a site's key: recorded in the audit log, and in force at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import SITES, federate, finished, grid_of, reasons_of, rounds_of
from typer.testing import CliRunner

from fedspecial.cli.main import app
from fedspecial.core.events import RoundFinished
from fedspecial.flower.governance.audit import read_lines, verify
from fedspecial.flower.grid import InProcessGrid

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")
SETTINGS = {"domains": "paper", "rounds": 3, "clients_per_round": 4}


def cli(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["flower", *map(str, arguments)])


def with_keys(grid: InProcessGrid) -> dict[int, bytes]:
    """Keys by node, which the grid then reports; they may be changed during the run."""
    keys = {node: f"key of {node}".encode() for node in grid.contexts}
    original = grid.get_nodes

    def get_nodes() -> list[Any]:
        nodes = original()
        for node in nodes:
            node.public_key = keys[node.node_id]
        return nodes

    grid.get_nodes = get_nodes  # type: ignore[method-assign]
    return keys


def events_of(run: Path, name: str) -> list[dict[str, Any]]:
    return [line for line in read_lines(run / "audit.jsonl") if line["event"] == name]


def test_a_revoked_key_is_out_from_the_next_exchange_on_and_the_log_says_why(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    with_keys(grid)

    def steal(event: Any) -> None:
        if isinstance(event, RoundFinished) and event.round == 0:
            done = cli("revoke", tmp_path / "run", "south", "--reason", "laptop was stolen")
            assert done.exit_code == 0, done.output

    run = federate(tmp_path, grid=grid, listeners=(steal,), **SETTINGS)
    used = [[update["site"] for update in line["updates"]] for line in rounds_of(run)]
    assert [("south" in sites, len(sites)) for sites in used] == [(True, 4), (False, 3), (False, 3)]
    assert reasons_of(run) == {"south": {"the site is not connected"}}
    assert [(line["site"], line["reason"]) for line in events_of(run, "key_revoked")] == [
        ("south", "laptop was stolen")
    ]
    assert {line["site"] for line in events_of(run, "site_key")} == set(SITES)
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


@pytest.mark.parametrize("options", [(), pytest.param(("--members",), marks=pytest.mark.slow)])
def test_a_revoked_key_stays_revoked_after_a_rollback(options: tuple[str, ...], tmp_path: Path) -> None:
    grid, settings = grid_of(tmp_path), {**SETTINGS, "rounds": 2, "keep_checkpoints": 9}
    with_keys(grid)
    run = federate(tmp_path, grid=grid, **settings)
    assert cli("revoke", run, "south", "--reason", "stolen").exit_code == 0
    assert cli("rollback", run, "--to", "1/1", "--reason", "its updates", *options).exit_code == 0
    federate(tmp_path, grid=grid, **settings)
    assert [len(line["updates"]) for line in rounds_of(run)] == [4, 4, 3]
    assert [line["site"] for line in events_of(run, "key_revoked")] == ["south"]
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


def test_a_rotated_key_is_recorded_once_and_the_old_one_can_be_revoked(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    keys = with_keys(grid)
    north = next(iter(keys))

    def rotate(event: Any) -> None:
        if isinstance(event, RoundFinished) and event.round == 0:
            keys[north] = b"a new key"
        if isinstance(event, RoundFinished) and event.round == 1:
            old = events_of(tmp_path / "run", "site_key")[0]["key"]
            assert cli("revoke", tmp_path / "run", "north", "--key", old[:16], "--reason", "rotated").exit_code == 0

    run = federate(tmp_path, grid=grid, listeners=(rotate,), **SETTINGS)
    recorded = [(line["site"], line["number"]) for line in events_of(run, "site_key") if line["site"] == "north"]
    assert recorded == [("north", 1), ("north", 2)]
    assert all(len(line["updates"]) == 4 for line in rounds_of(run))
    complaints = {
        ("revoke", run, "nobody", "--reason", "x"): "it has not connected with a key yet",
        ("revoke", run, "north", "--reason", "x", "--key", "zz"): "not the beginning of exactly one of",
        ("revoke", run, "north", "--reason", " "): "say why the key is revoked",
        ("revoke", tmp_path, "north", "--reason", "x"): "not the run directory of a federation",
    }
    for arguments, complaint in complaints.items():
        assert complaint in cli(*arguments).output.replace("\n", " ")


def test_a_revoked_key_is_out_although_it_is_registered_without_a_name(tmp_path: Path) -> None:
    """In a trial that accepts nodes without a name, its node could claim to be any site."""
    settings = {**SETTINGS, "rounds": 2, "allow_unregistered": True, "keep_checkpoints": 9}
    first = grid_of(tmp_path)
    with_keys(first)
    run = federate(tmp_path, grid=first, **settings)
    assert cli("revoke", run, "south", "--reason", "stolen").exit_code == 0
    assert cli("rollback", run, "--to", "1/1", "--reason", "its updates").exit_code == 0
    grid = grid_of(tmp_path, names=["north", "", "west", "east"])
    with_keys(grid)
    federate(tmp_path, grid=grid, **settings, wait_seconds=0.3)
    assert [len(line["updates"]) for line in rounds_of(run)] == [4, 4, 3]
    assert [line["site"] for line in events_of(run, "key_revoked")] == ["south"]
