"""Files that are cut off, damaged, foreign or huge: the page says what is wrong with which file and shows the rest."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from run_factory import append, round_finished, write_federation, write_newer_run, write_run
from ui_site import Site


def problems(site: Site, run: str = "a", view: str = "run") -> dict[str, str]:
    return {one["file"]: one["text"] for one in site.view(view, run)["problems"]}


def test_a_sound_run_has_no_problems(site: Site) -> None:
    write_run(site.folder / "a")
    assert problems(site) == {}
    assert site.view("overview")["row/a"]["problems"] == []


def test_a_last_line_that_a_kill_cut_off_is_no_problem(site: Site) -> None:
    run = write_run(site.folder / "a", stop_after=5)
    with (run / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "round", "ta')
    assert problems(site) == {}
    assert site.view("run", "a")["row"]["done"] == 3


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"\x00\xff garbage", "line 4: it is not JSON"),
        (b"[1, 2]", "line 4: it is not an event"),
        (b'{"event": 5}', "line 4: it is not an event"),
        (b"[" * 100_000, "line 4: it is not JSON"),
        (b'{"event": "round"}', "line 4: the event 'round' cannot be used: the field 'task' is missing"),
        (b'{"event": "round", "task": 1, "round": 1e99}', "not a number from 0 to"),
        (b'{"event": "task_finished", "task": 1, "accuracy": 7}', "line 4: the event 'task_finished' cannot be used"),
        (b'{"event": "update_refused", "client": -1, "round": 1, "reason": ""}', "line 4: the event 'update_refused'"),
    ],
)
def test_a_damaged_line_is_named_and_the_others_are_shown(site: Site, line: bytes, text: str) -> None:
    run = write_run(site.folder / "a")
    lines = (run / "events.jsonl").read_bytes().split(b"\n")
    (run / "events.jsonl").write_bytes(b"\n".join([*lines[:3], line, *lines[3:]]))
    assert text in problems(site)["events.jsonl"]
    found = site.view("run", "a")
    assert found["matrix"]["rows"] == [[0.9, 0.8], [0.8, 0.9]]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", '"text"', "[]", "{}", "true", "null"])
def test_a_value_that_is_no_number_is_a_gap_in_its_curve(site: Site, value: str) -> None:
    run = write_run(site.folder / "a", stop_after=3)
    content = json.dumps({"event": "round", **vars(round_finished(1, 1))}).replace('"loss": 0.5', f'"loss": {value}')
    with (run / "events.jsonl").open("ab") as file:
        file.write(content.encode() + b"\n")
    curves = site.view("run", "a")["curves"]
    assert curves["columns"]["loss"][1] is None
    assert curves["columns"]["delta_norm"] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("result.json", b'{"acc": 0.', "it is cut off or not JSON"),
        ("result.json", b"[]", "it is not a JSON object"),
        ("result.json", b" " * (9 << 20), "it is larger than 8 MB, so it is not read"),
        ("config.yaml", b"a: [", "it is cut off or not YAML"),
        ("config.yaml", b"just text", "it contains no settings"),
        ("config.yaml", b"a: &a [x,x]\nb: [*a,*a]", "it contains YAML aliases, which files of runs do not have"),
        ("config.yaml", b"a: !!python/object/apply:os.system [date]", "it is cut off or not YAML"),
    ],
)
def test_a_damaged_file_is_named_and_the_curves_are_shown(site: Site, name: str, content: bytes, text: str) -> None:
    run = write_run(site.folder / "a")
    (run / name).write_bytes(content)
    assert problems(site) == {name: text}
    assert len(site.view("run", "a")["curves"]["rounds"]) == 8


def test_an_event_log_without_its_beginning_is_named(site: Site) -> None:
    run = write_run(site.folder / "a")
    (run / "events.jsonl").write_bytes(b"\n".join((run / "events.jsonl").read_bytes().split(b"\n")[3:]))
    assert "does not begin with run_started" in problems(site)["events.jsonl"]


def test_events_of_kinds_that_this_version_does_not_know_are_left_out(site: Site) -> None:
    run = write_run(site.folder / "a", stop_after=3)
    with (run / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "news", "text": "x"}\n')
    append(run, round_finished(1, 1))
    assert problems(site) == {}
    assert site.view("run", "a")["row"]["done"] == 2


def test_a_run_of_a_later_version_is_shown_without_what_is_not_known(site: Site) -> None:
    write_newer_run(site.folder / "a")
    assert problems(site) == {}
    found = site.view("run", "a")
    assert found["matrix"]["rows"] == [[0.8, None], None]
    assert found["row"]["state"] == "finished"
    curves = found["curves"]["columns"]
    assert curves["accuracy/paper"][:2] == [0.9, 0.8]  # the last value of a round that was repeated
    assert set(curves["accuracy/neon"]) == {None}


def test_folders_of_other_projects_are_not_shown(site: Site) -> None:
    (site.folder / "project").mkdir()
    (site.folder / "project" / "config.yaml").write_text("name: something\n")
    (site.folder / "project" / "data.bin").write_bytes(b"\x00" * 100)
    assert [name for name in site.view("overview") if name.startswith("row/")] == []


def test_a_run_with_a_million_clients_and_hundreds_of_tasks_stays_small(site: Site) -> None:
    tasks = [f"task {number}" for number in range(300)]
    run = write_run(site.folder / "a", stop_after=1, tasks=tasks)
    lines = (run / "events.jsonl").read_text().replace('"clients": 8', '"clients": 1000000')
    (run / "events.jsonl").write_text(lines)
    append(run, round_finished(1, 0, clients=list(range(0, 1_000_000, 100))))
    reply = site.get("view/run?run=a")
    assert len(reply.body) < 100_000
    found = json.loads(reply.body)
    assert found["participation"]["rows"] <= 40
    assert "the run has 300 tasks; the page shows the first 60" in str(found["warnings"])


def test_a_damaged_run_does_not_hide_the_others(site: Site) -> None:
    write_run(site.folder / "good")
    (site.folder / "bad").mkdir()
    (site.folder / "bad" / "events.jsonl").write_bytes(b"\xff" * 1000 + b"\n")
    found = site.view("overview")
    assert found["row/good"]["acc"] == 0.85
    assert found["row/bad"]["problems"] == [{"file": "events.jsonl", "text": "line 1: it is not JSON"}]


def test_a_run_that_is_removed_disappears(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    from fedspecial.ui import index

    monkeypatch.setattr(index, "SCAN_SECONDS", 0.0)
    run = write_run(site.folder / "a")
    assert site.get("view/run?run=a").status == 200
    shutil.rmtree(run)
    assert site.get("view/run?run=a").status == 404
    assert "row/a" not in site.view("overview")


def test_an_address_of_a_run_that_is_not_there_says_so(site: Site) -> None:
    """A bookmark, for example. The page cannot read why a stream was refused; it would say "not connected"."""
    address = f"http://127.0.0.1:{site.server.server_port}/{site.server.token}/live/run?run=nothing"
    with urllib.request.urlopen(address, timeout=20) as reply:
        lines = reply.read().splitlines()
    assert lines[0] == b"event: gone"
    assert lines[1].startswith(b'data: "run=nothing: ')


def federation(site: Site) -> dict[str, Any]:
    return site.view("federation", "f")


def test_a_federation_shows_sites_rounds_refusals_and_decisions(site: Site) -> None:
    write_federation(site.folder / "f")
    found = federation(site)
    assert found["federations"] == ["f"]
    assert found["chain"]["state"] == "verified"
    states = {one["name"]: (one["state"], one["missed"], one["used"], one["refused"]) for one in found["sites"]}
    assert states == {
        "north": ("taking part", 0, 4, 0),
        "south": ("taking part", 0, 4, 0),
        "west": ("refused", 4, 0, 4),
    }
    assert [(one["round"], one["used"], one["requested"]) for one in found["rounds"]] == [
        (n, 2, 3) for n in (3, 2, 1, 0)
    ]
    assert {one["reason"] for one in found["refusals"]} == {"no reply within 60 s"}
    assert [(one["task"], one["publish"]) for one in found["decisions"]] == [(2, False)]
    assert found["privacy"] is None
    assert problems(site, "f", "federation") == {}


def test_an_edited_audit_log_is_reported(site: Site) -> None:
    path = write_federation(site.folder / "f") / "audit.jsonl"
    path.write_text(path.read_text().replace("no reply", "a reply"))
    found = federation(site)
    assert found["chain"]["state"] == "broken"
    assert "line 2 was edited" in found["chain"]["problems"]


@pytest.mark.parametrize(
    "content", [b"garbage\n", b'{"event": "round"}\n', b'{"event": "started", "sites": 7}\n', b"[]\n"]
)
def test_a_damaged_audit_log_is_reported_and_the_run_is_shown(site: Site, content: bytes) -> None:
    path = write_federation(site.folder / "f") / "audit.jsonl"
    path.write_bytes(path.read_bytes() + content)
    found = federation(site)
    assert found["chain"]["state"] == "broken"
    assert problems(site, "f", "federation") == {"audit.jsonl": "lines that cannot be used: 1"}
    assert len(found["rounds"]) == 4


def test_a_damaged_decision_is_named(site: Site) -> None:
    run: Path = write_federation(site.folder / "f")
    (run / "promotion" / "task-3.json").write_text("{}")
    (run / "promotion" / "task-4.json").write_text("{")
    assert problems(site, "f", "federation") == {
        "promotion/task-3.json": "it is not a decision of the promotion gate",
        "promotion/task-4.json": "it is cut off or not JSON",
    }
