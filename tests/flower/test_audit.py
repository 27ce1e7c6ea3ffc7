"""The audit log: every change of it is detected."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedspecial.cli.main import app
from fedspecial.errors import InputError
from fedspecial.flower.governance.audit import GENESIS, AuditLog, read_lines, verify
from fedspecial.flower.governance.round_record import Refusal, RoundRecord, UpdateRecord
from processes import Fork


def attempt(number: int, **settings: object) -> RoundRecord:
    updates = [UpdateRecord("north", 1000, "ab" * 32, 0.5 + number), UpdateRecord("south", 1000, "cd" * 32, 0.25)]
    fields = {"outcome": "completed", "model_before": f"{number:064x}", "model_after": f"{number + 1:064x}"}
    refusals = [Refusal("west", "no reply before the deadline")]
    return RoundRecord(1, number, ["north", "south", "west"], updates=updates, refusals=refusals, **(fields | settings))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(6):
        log.append_round(attempt(number, drift=0.1))
    return log.path


def test_an_unchanged_log_is_intact_up_to_its_head(path: Path) -> None:
    report = verify(path, AuditLog(path).head)
    assert report.intact
    assert report.lines == 6
    assert dict(report.updates) == {"north": 6, "south": 6}
    assert dict(report.refusals) == {"west": 6}


def test_what_was_written_is_read_back(path: Path) -> None:
    last = list(read_lines(path))[-1]
    assert (last["task"], last["round"], last["attempt"], last["drift"]) == (1, 5, 1, 0.1)
    assert last["updates"][0] == {"site": "north", "bytes": 1000, "sha256": "ab" * 32, "norm": 5.5}


@pytest.mark.parametrize("line", range(6))
def test_an_edited_line_is_named(path: Path, line: int) -> None:
    rows = path.read_text().splitlines(keepends=True)
    rows[line] = rows[line].replace('"norm":0.25', '"norm":0.24')
    path.write_text("".join(rows))
    assert verify(path).problems == [f"line {line + 1} was edited"]


@pytest.mark.parametrize("line", range(5))
def test_a_removed_line_is_detected(path: Path, line: int) -> None:
    rows = path.read_text().splitlines(keepends=True)
    del rows[line]
    path.write_text("".join(rows))
    assert [problem.split(":")[0] for problem in verify(path).problems] == [
        f"line {line + 1} does not follow the one before it"
    ]


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.permutations(range(6)))
def test_reordered_lines_are_detected(path: Path, order: list[int]) -> None:
    rows = path.read_text().splitlines(keepends=True)
    other = path.with_name("reordered.jsonl")
    other.write_text("".join(rows[i] for i in order))
    assert verify(other).intact == (list(order) == sorted(order))


def test_a_duplicated_line_is_detected(path: Path) -> None:
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*rows, rows[-1]]))
    assert not verify(path).intact


@pytest.mark.parametrize("keep", range(6))
def test_a_truncated_log_is_detected_only_by_the_head(path: Path, keep: int) -> None:
    head = AuditLog(path).head
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:keep]))
    assert verify(path).intact
    assert "is not in the log" in verify(path, head).problems[0]


def test_lines_after_the_head_are_not_a_problem(path: Path) -> None:
    """The head in a checkpoint stays valid when the run continues."""
    log = AuditLog(path)
    head = log.head
    log.append("published", {"folder": "models/a"})
    assert verify(path, head).intact


def test_a_repeated_round_is_its_second_attempt(path: Path) -> None:
    before = path.read_bytes()
    AuditLog(path).append_round(attempt(5))
    assert path.read_bytes().startswith(before)
    assert [line["attempt"] for line in read_lines(path) if line["round"] == 5] == [1, 2]
    assert verify(path).intact


@given(st.data())
def test_a_line_cut_off_by_a_crash_stays_and_is_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    log = AuditLog(tmp_path_factory.mktemp("log") / "audit.jsonl")
    log.append_round(attempt(0))
    first = len(log.path.read_bytes())
    log.append_round(attempt(1))
    everything = log.path.read_bytes()
    length = data.draw(st.integers(first + 1, len(everything) - 1))
    cut_off = everything[:length]
    log.path.write_bytes(cut_off)
    assert not verify(log.path).intact
    again = AuditLog(log.path)
    again.append_round(attempt(1))
    assert log.path.read_bytes().startswith(cut_off)
    report = verify(log.path, again.head)
    assert report.intact
    lost_only_the_newline = length == len(everything) - 1
    assert report.notes == ([] if lost_only_the_newline else ["line 2 was cut off by a crash"])
    assert report.attempts[1, 1] == 1 + lost_only_the_newline


def test_a_cut_off_recovery_line_is_recovered_too(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"n":7,"prev')
    AuditLog(path)
    path.write_bytes(path.read_bytes()[:-30])
    AuditLog(path).append_round(attempt(6))
    assert verify(path).intact


def test_a_damaged_log_is_not_written_to(path: Path) -> None:
    path.write_text(path.read_text().replace("north", "nord", 1))
    damaged = path.read_bytes()
    with pytest.raises(InputError, match="line 1 was edited"):
        AuditLog(path)
    assert path.read_bytes() == damaged


def test_two_writers_are_detected(path: Path) -> None:
    one, other = AuditLog(path), AuditLog(path)
    one.append_round(attempt(6))
    with pytest.raises(InputError, match="another process"):
        other.append_round(attempt(6))
    assert verify(path).intact


def test_nan_is_not_written(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        AuditLog(path).append_round(attempt(6, drift=float("nan")))
    assert path.read_bytes() == before


def test_an_empty_log_is_intact(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "new" / "audit.jsonl")
    assert log.head == GENESIS
    assert verify(log.path).intact
    assert not verify(log.path, GENESIS).intact  # every log contains it, so it proves nothing


def test_the_command_says_what_is_wrong(fork: Fork, path: Path) -> None:
    head = AuditLog(path).head
    good = fork("flower", "audit", path, "--head", head)
    assert good.code == 0, good.stderr
    assert "site west: 0 updates used, 6 replies refused" in good.stdout
    assert good.stdout.endswith("the log is intact\n")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    cut = fork("flower", "audit", path, "--head", head)
    assert cut.code == 1
    assert f"NOT INTACT: the head {head} is not in the log" in cut.stdout


def test_the_command_names_a_missing_file(fork: Fork, tmp_path: Path) -> None:
    assert "nothing.jsonl: cannot be read" in fork("flower", "audit", tmp_path / "nothing.jsonl").error_line


def test_a_log_of_an_older_format_is_refused_with_its_version(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"n":1,"previous":"' + GENESIS + '","event":"started","seal":"' + "a" * 64 + '"}\n')
    with pytest.raises(InputError, match="audit log of format 1; this version of fedspecial reads format 3"):
        verify(path)
    with pytest.raises(InputError, match="format 1"):
        AuditLog(path)


def written(path: Path, **line: Any) -> Path:
    """A log of one line whose hash is right, as somebody who is not the server can write it."""
    body = json.dumps({"n": 1, "previous": GENESIS, "time": "", **line}, separators=(",", ":"))
    path.write_text(f'{body[:-1]},"hash":"{hashlib.sha256(body.encode()).hexdigest()}"}}\n')
    return path


ROUND: dict[str, Any] = {
    **{"event": "round", "task": 1, "round": 0, "outcome": "completed"},
    **{"updates": [], "refusals": []},
}
ODD: dict[str, dict[str, Any]] = {
    "a task that is a list": {**ROUND, "task": [1]},
    "an outcome that is a list": {**ROUND, "outcome": ["completed"]},
    "updates that are a number": {**ROUND, "updates": 5},
    "an update that is a number": {**ROUND, "updates": [5]},
    "a refusal without a site": {**ROUND, "refusals": [{}]},
    "a border with an odd refusal": {"event": "task_boundary", "refusals": [1]},
    "a key that is none": {"event": "started", "key": "ab"},
}


@pytest.mark.parametrize("what", ODD)
def test_a_line_with_odd_content_is_not_intact(what: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["flower", "audit", str(written(tmp_path / "audit.jsonl", **ODD[what]))])
    assert done.exit_code == 1
    assert "NOT INTACT" in done.output


def test_a_line_that_is_nested_deeply_is_not_intact(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").write_bytes(b"[" * 100_000 + b"\n")
    assert not verify(tmp_path / "audit.jsonl").intact


def test_names_in_a_log_of_somebody_else_cannot_command_the_terminal(tmp_path: Path) -> None:
    forged = "north\x1b[2J\nthe log is intact \ud800"
    update, refusal = {"site": forged}, {"site": forged + "2"}
    log = written(tmp_path / "audit.jsonl", **{**ROUND, "outcome": forged, "updates": [update], "refusals": [refusal]})
    done = CliRunner().invoke(app, ["flower", "audit", str(log)])
    assert done.exit_code == 0
    assert all(line.isprintable() for line in done.output.splitlines())
    assert sum(line.startswith("the log is intact") for line in done.output.splitlines()) == 1
