"""A federation lives on: tasks are appended, sites join and leave between rounds, and the audit log goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flower_fixtures import POLICY, SIZES, finished, rounds_of

from fedspecial import methods
from fedspecial.config import preset_settings
from fedspecial.core.events import RoundFinished, of_kind, read_events
from fedspecial.errors import InputError
from fedspecial.flower.app.client_app import make_client_app
from fedspecial.flower.app.membership import Membership, apply_changes, cancel_change, request_change
from fedspecial.flower.app.server_app import serve
from fedspecial.flower.governance.audit import read_lines, verify
from fedspecial.flower.grid import InProcessGrid
from fedspecial.ui.status import status_of, status_text

pytestmark = pytest.mark.usefixtures("unpictured")

SITES, TASKS = ("north", "south", "west", "east"), ("first", "second", "third")
GATE = {"on_refused_model": "continue"}  # most of these models hardly learn; only one test is about the gate
FAST = ("special", "srfdil", "pfeddil")
FEDERATED = [name for name in methods.names() if not methods.find(name).simulation_only]
every_method = pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in FEDERATED]
)


def write_data(folder: Path, tasks: Sequence[str] = TASKS) -> None:
    """Four sites with small images."""
    generator = torch.Generator().manual_seed(0)
    for site in SITES:
        (folder / site).mkdir(parents=True)
        for number, task in enumerate(tasks):
            y = torch.arange(24) % 2
            x = torch.randint(0, 60, (24, 3, 8, 8), generator=generator) + 60 * number
            x[y == 1, :, :, :4] += 100
            x = x.to(torch.uint8)
            parts = {"x_train": x[:16], "y_train": y[:16], "x_test": x[16:], "y_test": y[16:]}
            np.savez(folder / site / f"{task}.npz", **parts)


def grid_of(folder: Path, tasks: Sequence[str] = TASKS) -> InProcessGrid:
    write_data(folder, tasks)
    nodes = [{"site": s, "data": str(folder / s), "state": str(folder / s / "state")} for s in SITES]
    return InProcessGrid(make_client_app(), nodes)


def federate(
    folder: Path, method: str = "special", *, grid: InProcessGrid | None = None, listener: Any = None, **settings: Any
) -> Path:
    own = preset_settings("digits-shift")["methods"].get(method, {}) | SIZES.get(method, {})
    config = {
        **{"sites": "north,south,west", "tasks": "first,second", "classes": "a,b", "shape": "3,8,8", "kind": "image"},
        **{"method": method, "model": "cnn", "width": 4, "rounds": 2, "client_lr": 0.05, "batch_size": 8},
        **{"local_epochs": 1, "eval_every": 0, **own, **POLICY, **GATE, **settings, "out": str(folder / "run")},
    }
    return serve(grid or grid_of(folder), config, (listener,) if listener else ())


def after(folder: Path, *changes: tuple[int, int, Any, str]) -> Callable[[Any], None]:
    """A listener that requests each change (task, round, kind, name) once, after that round."""
    left = list(changes)

    def listen(event: Any) -> None:
        if isinstance(event, RoundFinished) and left and left[0][:2] == (event.task, event.round):
            request_change(folder / "run", *left.pop(0)[2:])

    return listen


def lines(run: Path, *events: str) -> list[dict[str, Any]]:
    return [line for line in read_lines(run / "audit.jsonl") if line["event"] in events]


def test_a_task_added_to_a_finished_federation_gives_the_model_of_one_that_knew_it(tmp_path: Path) -> None:
    for name in ("whole", "grown"):
        (tmp_path / name).mkdir()
    whole = federate(tmp_path / "whole", tasks="first,second,third")
    grid = grid_of(tmp_path / "grown")
    run = federate(tmp_path / "grown", grid=grid)
    request_change(run, "task_added", "third")
    federate(tmp_path / "grown", grid=grid)
    assert finished(run)["model_sha256"] == finished(whole)["model_sha256"]
    found, expected = (json.loads((folder / "result.json").read_text()) for folder in (run, whole))
    assert found["tasks"] == list(TASKS)
    assert [found[name] for name in ("acc", "bwt")] == [expected[name] for name in ("acc", "bwt")]
    assert [line["name"] for line in lines(run, "task_added")] == ["third"]
    assert verify(run / "audit.jsonl").intact
    assert of_kind(read_events(run / "events.jsonl"), "run_extended")[0]["tasks"] == ["third"]
    federate(tmp_path / "grown", grid=grid)  # started again: nothing is left to do
    assert len(lines(run, "task_added")) == 1


@pytest.mark.parametrize("moment", [(1, 0), (2, 1)])
def test_a_task_added_to_a_running_federation_gives_the_same_model(moment: tuple[int, int], tmp_path: Path) -> None:
    for name in ("whole", "grown"):
        (tmp_path / name).mkdir()
    whole = federate(tmp_path / "whole", tasks="first,second,third")
    run = federate(tmp_path / "grown", listener=after(tmp_path / "grown", (*moment, "task_added", "third")))
    assert finished(run)["model_sha256"] == finished(whole)["model_sha256"]
    assert verify(run / "audit.jsonl").intact


@every_method
def test_a_site_joins_and_another_leaves_between_rounds(method: str, tmp_path: Path) -> None:
    """East joins after the first round without state of it and of later tasks; south leaves in the second task."""
    changes = [
        (1, 0, "site_added", "east"),
        (2, 0, "site_removed", "south"),
        (2, 1, "task_added", "third"),
    ]
    run = federate(tmp_path, method, listener=after(tmp_path, *changes))
    asked = [line["requested"] for line in rounds_of(run)]
    assert asked == [
        ["north", "south", "west"],
        ["north", "south", "west", "east"],
        ["north", "south", "west", "east"],
        ["north", "west", "east"],
        ["north", "west", "east"],
        ["north", "west", "east"],
    ]
    assert {line["outcome"] for line in rounds_of(run)} == {"completed"}
    assert finished(run)["refusals"] == {}
    noted = lines(run, "site_added", "site_removed", "task_added")
    assert [(line["event"], line["name"]) for line in noted] == [tuple(change[2:]) for change in changes]
    assert [line.get("client") for line in noted] == [3, 1, None]
    assert verify(run / "audit.jsonl").intact
    assert len(finished(run)["matrix"]) == 3


def test_a_site_that_joins_after_the_last_round_of_a_task_is_asked_in_the_next_task(tmp_path: Path) -> None:
    run = federate(tmp_path, "fedavg", listener=after(tmp_path, (1, 1, "site_added", "east")))
    assert [len(line["requested"]) for line in rounds_of(run)] == [3, 3, 4, 4]
    assert Membership.read(run).sites == SITES


def test_a_removed_site_keeps_its_number_and_its_node_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = federate(tmp_path, listener=after(tmp_path, (1, 0, "site_removed", "north")))
    assert "'north' was removed from this federation" in caplog.text
    assert [line["requested"] for line in rounds_of(run)][1:] == [["south", "west"]] * 3
    with pytest.raises(InputError, match="site 'north': the federation has this name already and it left"):
        request_change(run, "site_added", "north")
    request_change(run, "site_added", "east")
    with pytest.raises(InputError, match="site 'east': the federation has this name already"):
        request_change(run, "site_added", "east")


def test_a_server_killed_while_it_applies_a_change_notes_it_once(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    run = federate(tmp_path, grid=grid, tasks="first", rounds=1)
    request_change(run, "task_added", "second")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Membership, "write", _killed)  # the audit log has the line, federation.json does not
        with pytest.raises(KeyboardInterrupt):
            federate(tmp_path, grid=grid, tasks="first", rounds=1)
    federate(tmp_path, grid=grid, tasks="first", rounds=1)
    assert [line["name"] for line in lines(run, "task_added")] == ["second"]
    assert len(finished(run)["matrix"]) == 2
    assert verify(run / "audit.jsonl").intact


def _killed(self: Membership, folder: Path) -> None:
    raise KeyboardInterrupt


def test_a_cancelled_change_is_not_applied_and_leaves_no_line_in_the_log(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    run = federate(tmp_path, grid=grid, tasks="first", rounds=1)
    before = (run / "audit.jsonl").read_bytes()
    request_change(run, "task_added", "thrid")
    assert "waiting to be applied: task added: thrid" in status_text(status_of(run))
    assert cancel_change(run, "thrid") == "task_added"
    assert "waiting to be applied" not in status_text(status_of(run))
    federate(tmp_path, grid=grid, tasks="first", rounds=1)
    assert Membership.read(run).tasks == ("first",)
    assert (run / "audit.jsonl").read_bytes() == before


def test_only_a_change_that_waits_and_that_no_other_needs_can_be_cancelled(tmp_path: Path) -> None:
    run = federate(tmp_path, tasks="first", rounds=1)
    request_change(run, "site_added", "east")
    request_change(run, "task_added", "second")
    with pytest.raises(InputError, match=r"'third': no change .* waits \(waiting: east, second\).*rollback"):
        cancel_change(run, "third")
    request_change(run, "site_removed", "east")
    (run / "changes" / f"{0:020d}.json").write_text(json.dumps({"id": "0", "change": "site_removed", "name": "south"}))
    assert cancel_change(run, "east") == "site_removed"  # the last one of this name
    request_change(run, "site_removed", "north")
    request_change(run, "site_removed", "west")  # north, south and west leave, so east has to stay
    with pytest.raises(InputError, match=r"'east': a later request needs this one.*last site"):
        cancel_change(run, "east")
    assert len(list((run / "changes").iterdir())) == 5


def test_a_change_that_the_server_has_begun_to_apply_cannot_be_cancelled(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    run = federate(tmp_path, grid=grid, tasks="first", rounds=1)
    request_change(run, "task_added", "second")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Membership, "write", _killed)  # the audit log has the line already
        with pytest.raises(KeyboardInterrupt):
            federate(tmp_path, grid=grid, tasks="first", rounds=1)
    with pytest.raises(InputError, match=r"'second': no change .* waits \(waiting: none\)"):
        cancel_change(run, "second")


def test_a_change_that_is_cancelled_while_the_server_reads_it_is_not_applied(tmp_path: Path) -> None:
    run = federate(tmp_path, tasks="first", rounds=1)
    request_change(run, "task_added", "second")
    changed, appended = Membership.changed, []

    def cancelled_meanwhile(self: Membership, kind: Any, name: str) -> Membership:
        (request,) = (run / "changes").iterdir()
        request.unlink()
        return changed(self, kind, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Membership, "changed", cancelled_meanwhile)
        now = Membership.read(run)
        found = apply_changes(run, now, set, lambda event, fields: appended.append(event))
    assert found == now == Membership.read(run)
    assert not appended


def test_a_task_is_not_learned_from_a_refused_model(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    settings = {"grid": grid, "tasks": "first", "rounds": 1, "min_accuracy": 1.0, "on_refused_model": "stop"}
    run = federate(tmp_path, **settings)  # its only model is refused; there was no next task to stop before
    request_change(run, "task_added", "second")
    with pytest.raises(InputError, match="on_refused_model=stop: the gate refused the model of task 1"):
        federate(tmp_path, **settings)
    federate(tmp_path, **{**settings, "on_refused_model": "continue"})
    assert len(finished(run)["matrix"]) == 2


def test_bad_changes_are_refused_in_one_line_and_leave_nothing(tmp_path: Path) -> None:
    run = federate(tmp_path, sites="north", tasks="first", rounds=1)
    for kind, name, message in (
        ("task_added", "first", "task 'first': the federation has it already"),
        ("site_removed", "south", "site 'south': not a site of this federation"),
        ("site_removed", "north", "site 'north': it is the last site"),
        ("site_added", "a/b", "a/b"),
    ):
        with pytest.raises(InputError, match=message):
            request_change(run, kind, name)
    assert not (run / "changes").exists()
    (tmp_path / "other").mkdir()
    detected = federate(tmp_path / "other", sites="north", tasks="first", rounds=1, detect="loss")
    with pytest.raises(InputError, match=r"detect=loss: no task can be added to .*its stream ends with its tasks"):
        request_change(detected, "task_added", "second")
    with pytest.raises(InputError, match="not the run directory of a federation"):
        request_change(tmp_path, "task_added", "x")


def test_a_damaged_list_of_members_is_named(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    run = federate(tmp_path, grid=grid, sites="north", tasks="first", rounds=1)
    content = (run / "federation.json").read_text()
    for damaged in (content[:20], "[1]", '{"format": 3}', ""):
        (run / "federation.json").write_text(damaged)
        with pytest.raises(InputError, match=r"federation\.json: cut off or changed .*restore it"):
            request_change(run, "task_added", "second")
    (run / "federation.json").write_text(content)
    request_change(run, "task_added", "second")
    (request,) = (run / "changes").iterdir()
    request.write_text('{"change": ')
    with pytest.raises(InputError, match=rf"{request.name}: cut off or changed"):
        federate(tmp_path, grid=grid, sites="north", tasks="first", rounds=1)
