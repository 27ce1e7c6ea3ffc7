"""A rollback to a round before sites or tasks changed: decisions stay in force, or are undone with --members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flower_fixtures import finished, rounds_of
from test_membership import after, federate, grid_of, lines
from typer.testing import CliRunner

from fedspecial.cli.main import app
from fedspecial.core.events import of_kind, read_events
from fedspecial.engine import checkpoint as checkpoints
from fedspecial.errors import InputError
from fedspecial.flower.app.membership import Membership, request_change
from fedspecial.flower.app.rollback import parse_position, roll_back
from fedspecial.flower.governance.audit import verify
from fedspecial.flower.grid import InProcessGrid
from fedspecial.ui.status import prometheus_text, status_of, status_text

pytestmark = pytest.mark.usefixtures("unpictured")
KEEP = {"keep_checkpoints": 20}
two_methods = pytest.mark.parametrize("method", ["special", pytest.param("srfdil", marks=pytest.mark.slow)])


def grown(folder: Path, grid: InProcessGrid, method: str = "special") -> Path:
    """East joins after the first round, south leaves after the third, and a third task comes at the end."""
    changes = [(1, 0, "site_added", "east"), (2, 0, "site_removed", "south")]
    federate(folder, method, grid=grid, listener=after(folder, *changes), **KEEP)
    request_change(folder / "run", "task_added", "third")
    return federate(folder, method, grid=grid, **KEEP)


def back(run: Path, to: str, *options: str) -> str:
    done = CliRunner().invoke(app, ["flower", "rollback", str(run), "--to", to, "--reason", "test", *options])
    assert done.exit_code == 0, done.output
    return done.output


def asked(run: Path) -> list[list[str]]:
    return [line["requested"] for line in rounds_of(run)]


def states(run: Path) -> dict[str, str]:
    """What `fedspecial flower status` says about each site."""
    return {row["name"]: row["state"] for row in status_of(run)["sites"]}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("special", ()),
        pytest.param("special", ("--members",), marks=pytest.mark.slow),
        pytest.param("flwf2t", (), marks=pytest.mark.slow),
        pytest.param("flwf2t", ("--members",), marks=pytest.mark.slow),
    ],
)
def test_a_rollback_to_before_an_added_task_ends_with_the_same_model(
    method: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    grid = grid_of(tmp_path)
    federate(tmp_path, method, grid=grid, **KEEP)
    request_change(tmp_path / "run", "task_added", "third")
    run = federate(tmp_path, method, grid=grid, **KEEP)
    before = finished(run)
    back(run, "2/1", *options)
    (line,) = lines(run, "rollback")
    assert line["undone" if options else "kept"] == [{"change": "task_added", "name": "third"}]
    assert line["to"] == "2/1"
    if options:
        federate(tmp_path, method, grid=grid, **KEEP)
        assert finished(run)["matrix"] == before["matrix"][:2]
        assert Membership.read(run).tasks == ("first", "second")
        assert not of_kind(read_events(run / "events.jsonl"), "run_extended")
        request_change(run, "task_added", "third")
    federate(tmp_path, method, grid=grid, **KEEP)
    assert finished(run)["model_sha256"] == before["model_sha256"]
    assert [row[: number + 1] for number, row in enumerate(finished(run)["matrix"])] == [
        row[: number + 1] for number, row in enumerate(before["matrix"])
    ]  # entries of domains that were unknown the first time may be known now
    assert json.loads((run / "result.json").read_text())["tasks"] == ["first", "second", "third"]
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


@two_methods
def test_sites_that_joined_or_left_since_stay_so(method: str, tmp_path: Path) -> None:
    """The state of three sites goes on with the sites of today, as if they had changed at that round."""
    grid = grid_of(tmp_path)
    run = grown(tmp_path, grid, method)
    number = len(rounds_of(run))
    back(run, "1/1")
    federate(tmp_path, method, grid=grid, **KEEP)
    assert asked(run)[number:] == [["north", "west", "east"]] * 5
    assert {line["outcome"] for line in rounds_of(run)} == {"completed"}
    assert [entry["name"] for entry in lines(run, "rollback")[0]["kept"]] == ["third", "east", "south"]
    assert len(finished(run)["matrix"]) == 3
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact

    other = tmp_path / "other"
    other.mkdir()
    changes = [(1, 0, kind, name) for kind, name in (("site_added", "east"), ("site_removed", "south"))]

    def both(event: Any) -> None:
        after(other, changes[0])(event)
        after(other, changes[1])(event)

    same = federate(other, method, listener=both, tasks="first,second,third")
    assert finished(run)["model_sha256"] == finished(same)["model_sha256"]


@two_methods
def test_with_members_the_run_is_that_of_the_sites_of_that_round(method: str, tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    run = grown(tmp_path, grid, method)
    assert states(run) == {**dict.fromkeys(("north", "west", "east"), "taking part"), "south": "left the federation"}
    assert "  south: left the federation, 3 of 3 updates used" in status_text(status_of(run))
    assert 'site="south"' not in prometheus_text(status_of(run)).partition("fedspecial_accuracy")[0]
    number = len(rounds_of(run))
    back(run, "1/1", "--members")
    assert states(run) == {**dict.fromkeys(("north", "west", "south"), "taking part"), "east": "left the federation"}
    assert [entry["name"] for entry in lines(run, "rollback")[0]["undone"]] == ["third", "east", "south"]
    federate(tmp_path, method, grid=grid, **KEEP)
    assert asked(run)[number:] == [["north", "south", "west"]] * 3
    plain = tmp_path / "plain"
    plain.mkdir()
    assert finished(run)["model_sha256"] == finished(federate(plain, method))["model_sha256"]
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact
    request_change(run, "site_added", "east")  # its name is free again
    request_change(run, "task_added", "third")
    federate(tmp_path, method, grid=grid, **KEEP)
    assert asked(run)[-1] == ["north", "south", "west", "east"]


def test_a_change_that_waits_is_applied_after_a_rollback(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    run = federate(tmp_path, grid=grid, **KEEP)
    request_change(run, "task_added", "third")
    back(run, "2/0", "--members")
    federate(tmp_path, grid=grid, **KEEP)
    assert len(finished(run)["matrix"]) == 3


def test_a_checkpoint_that_does_not_name_its_members_is_refused_with_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = federate(tmp_path, tasks="first", rounds=1, **KEEP)
    before = (run / "audit.jsonl").read_bytes()
    loaded = checkpoints.load

    def old(*arguments: Any) -> Any:
        found = loaded(*arguments)
        if found is not None:
            found.payloads.pop("members")
        return found

    monkeypatch.setattr(checkpoints, "load", old)
    with pytest.raises(InputError, match="--members: the checkpoint of 1/1 does not say which sites there were"):
        roll_back(run, parse_position("1/1"), "why", members=True)
    assert (run / "audit.jsonl").read_bytes() == before
    roll_back(run, parse_position("1/1"), "why")
    assert "kept" not in lines(run, "rollback")[0]


def test_a_task_that_was_added_by_mistake_is_undone_without_losing_a_round(tmp_path: Path) -> None:
    """No site has its samples, so no round of it can be finished, and the run is still at its beginning."""
    grid = grid_of(tmp_path)
    before = finished(run := federate(tmp_path, grid=grid, **KEEP))
    request_change(run, "task_added", "thrid")
    with pytest.raises(InputError, match=r"task 3: no site has samples of 'thrid'.*rollback .*/run --to 3/0 --members"):
        federate(tmp_path, grid=grid, **KEEP)
    with pytest.raises(InputError, match="--to 3/0: the run is there already"):
        roll_back(run, parse_position("3/0"), "a slip")
    shown = " ".join(back(run, "3/0", "--members").split())
    assert shown.startswith("undone: task added: thrid (request it again if it is still wanted)")
    assert lines(run, "rollback")[0]["undone"] == [{"change": "task_added", "name": "thrid"}]
    assert not lines(run, "rollback")[0]["withdrawn"]
    with pytest.raises(InputError, match="--to 3/0: the run is there already"):
        roll_back(run, parse_position("3/0"), "again", members=True)
    federate(tmp_path, grid=grid, **KEEP)
    assert finished(run)["model_sha256"] == before["model_sha256"]
    request_change(run, "task_added", "third")
    federate(tmp_path, grid=grid, **KEEP)
    assert len(finished(run)["matrix"]) == 3
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact
