"""The audit log: nothing can be changed in it without being noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedspecial.errors import InputError
from fedspecial.flower.governance.audit import GENESIS, AuditLog, lines, verify
from fedspecial.flower.governance.round_record import Answer, Refusal, RoundRecord
from processes import fresh


def attempt(number: int, **settings: object) -> RoundRecord:
    answers = [Answer("north", 1000, "ab" * 32, 0.5 + number), Answer("south", 1000, "cd" * 32, 0.25)]
    told = {"outcome": "completed", "model_before": f"{number:064x}", "model_after": f"{number + 1:064x}"}
    refusals = [Refusal("west", "no answer in time")]
    return RoundRecord(1, number, ["north", "south", "west"], answers=answers, refusals=refusals, **(told | settings))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(6):
        log.append_round(attempt(number, drift=0.1, certificate={"cap": 0.4, "holds": True}))
    return log.path


def test_a_whole_log_is_sound_up_to_its_head(path: Path) -> None:
    report = verify(path, AuditLog(path).head)
    assert report.sound
    assert report.lines == 6
    assert dict(report.answered) == {"north": 6, "south": 6}
    assert dict(report.refused) == {"west": 6}


def test_what_was_written_is_read_back(path: Path) -> None:
    last = list(lines(path))[-1]
    assert (last["task"], last["round"], last["attempt"], last["drift"]) == (1, 5, 1, 0.1)
    assert last["answers"][0] == {"site": "north", "bytes": 1000, "sha256": "ab" * 32, "norm": 5.5}
    assert last["certificate"] == {"cap": 0.4, "holds": True}


@pytest.mark.parametrize("line", range(6))
def test_an_edited_line_is_named(path: Path, line: int) -> None:
    rows = path.read_text().splitlines(keepends=True)
    rows[line] = rows[line].replace('"norm":0.25', '"norm":0.24')
    path.write_text("".join(rows))
    assert verify(path).problems == [f"line {line + 1} was edited"]


@pytest.mark.parametrize("line", range(5))
def test_a_removed_line_is_noticed(path: Path, line: int) -> None:
    rows = path.read_text().splitlines(keepends=True)
    del rows[line]
    path.write_text("".join(rows))
    assert [problem.split(":")[0] for problem in verify(path).problems] == [
        f"line {line + 1} does not follow the one before it"
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(6)))
def test_reordered_lines_are_noticed(path: Path, order: list[int]) -> None:
    rows = path.read_text().splitlines(keepends=True)
    other = path.with_name("reordered.jsonl")
    other.write_text("".join(rows[i] for i in order))
    assert verify(other).sound == (list(order) == sorted(order))


def test_a_doubled_line_is_noticed(path: Path) -> None:
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*rows, rows[-1]]))
    assert not verify(path).sound


@pytest.mark.parametrize("keep", range(6))
def test_a_cut_tail_is_noticed_by_the_head_alone(path: Path, keep: int) -> None:
    head = AuditLog(path).head
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:keep]))
    assert verify(path).sound
    assert "is not in the log" in verify(path, head).problems[0]


def test_lines_after_the_head_are_no_fault(path: Path) -> None:
    """The head in a checkpoint stays true when the run goes on."""
    log = AuditLog(path)
    head = log.head
    log.append("published", {"folder": "models/a"})
    assert verify(path, head).sound


def test_a_replayed_round_is_its_second_attempt(path: Path) -> None:
    before = path.read_bytes()
    AuditLog(path).append_round(attempt(5))
    assert path.read_bytes().startswith(before)
    assert [line["attempt"] for line in lines(path) if line["round"] == 5] == [1, 2]
    assert verify(path).sound


@given(st.data())
def test_a_write_that_a_crash_tore_stays_and_is_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    log = AuditLog(tmp_path_factory.mktemp("log") / "audit.jsonl")
    log.append_round(attempt(0))
    whole = len(log.path.read_bytes())
    log.append_round(attempt(1))
    everything = log.path.read_bytes()
    length = data.draw(st.integers(whole + 1, len(everything) - 1))
    torn = everything[:length]
    log.path.write_bytes(torn)
    assert not verify(log.path).sound
    again = AuditLog(log.path)
    again.append_round(attempt(1))
    assert log.path.read_bytes().startswith(torn)
    report = verify(log.path, again.head)
    assert report.sound
    lost_its_end_only = length == len(everything) - 1
    assert report.notes == ([] if lost_its_end_only else ["line 2 was cut off by a crash"])
    assert report.attempts[1, 1] == 1 + lost_its_end_only


def test_even_a_torn_recovery_is_recovered_from(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"n":7,"prev')
    AuditLog(path)
    path.write_bytes(path.read_bytes()[:-30])
    AuditLog(path).append_round(attempt(6))
    assert verify(path).sound


def test_a_damaged_log_is_not_written_to(path: Path) -> None:
    path.write_text(path.read_text().replace("north", "nord", 1))
    damaged = path.read_bytes()
    with pytest.raises(InputError, match="line 1 was edited"):
        AuditLog(path)
    assert path.read_bytes() == damaged


def test_two_writers_are_noticed(path: Path) -> None:
    one, other = AuditLog(path), AuditLog(path)
    one.append_round(attempt(6))
    with pytest.raises(InputError, match="another process"):
        other.append_round(attempt(6))
    assert verify(path).sound


def test_numbers_that_are_none_are_not_written(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        AuditLog(path).append_round(attempt(6, drift=float("nan")))
    assert path.read_bytes() == before


def test_an_empty_log_is_sound(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "new" / "audit.jsonl")
    assert log.head == GENESIS
    assert verify(log.path, GENESIS).sound


def test_the_command_says_what_is_wrong(path: Path) -> None:
    head = AuditLog(path).head
    good = fresh("flower", "audit", path, "--head", head)
    assert good.code == 0, good.stderr
    assert "site west: 0 answers used, 6 refused" in good.stdout
    assert good.stdout.endswith("the log is whole\n")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    cut = fresh("flower", "audit", path, "--head", head)
    assert cut.code == 1
    assert f"NOT WHOLE: the head {head} is not in the log" in cut.stdout


def test_the_command_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "nothing.jsonl: cannot be read" in fresh("flower", "audit", tmp_path / "nothing.jsonl").complaint
