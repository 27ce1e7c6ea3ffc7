"""Files are read as they grow: only the new end, in bounded memory, and again from the start after a resume."""

from __future__ import annotations

import json
import math
import re
import time
from importlib import resources
from pathlib import Path

import pytest
from run_factory import append, events, round_finished, write_run

from fedspecial.config import EXECUTION
from fedspecial.core.events import EngineStarted, EventLog
from fedspecial.core.extension import RunExtended
from fedspecial.runs import directory
from fedspecial.ui import tail
from fedspecial.ui.curves import CurveTable, ParticipationGrid
from fedspecial.ui.index import RunIndex
from fedspecial.ui.run_files import RunFiles
from fedspecial.ui.runlog import RunLog
from fedspecial.ui.tail import TailReader

FOREVER = math.inf


class Lines(list[bytes]):
    """What a reader passed on; `reads` counts the bytes that it took from the file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.restarts = 0
        self.reader = TailReader(path.parent, path, self.append, self._restart)

    def _restart(self) -> None:
        self.clear()
        self.restarts += 1

    def poll(self) -> list[bytes]:
        self.reader.poll(FOREVER)
        return list(self)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "log"


def test_a_line_is_passed_on_once_and_when_it_is_complete(log: Path) -> None:
    lines = Lines(log)
    assert lines.poll() == []
    log.write_bytes(b"one\ntw")
    assert lines.poll() == [b"one"]
    with log.open("ab") as file:
        file.write(b"o\nthree\n")
    assert lines.poll() == [b"one", b"two", b"three"]
    assert lines.poll() == [b"one", b"two", b"three"]
    assert lines.restarts == 0


def test_only_the_new_end_is_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_bytes(b"x" * 99 + b"\n" + b"y" * 99 + b"\n" + b"z\n" * 100_000)
    lines = Lines(log)
    lines.poll()
    sizes: list[int] = []
    real = tail.os.pread

    def counted(file: int, size: int, at: int) -> bytes:
        data = real(file, size, at)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(tail.os, "pread", counted)
    with log.open("ab") as file:
        file.write(b"new\n")
    assert lines.poll()[-1] == b"new"
    assert sum(sizes) <= 2 * tail.MARK + len(b"new\n")


def test_a_log_that_was_cut_back_is_read_again(log: Path) -> None:
    log.write_bytes(b"a\nb\nc\n")
    lines = Lines(log)
    lines.poll()
    log.write_bytes(b"a\n")
    assert lines.poll() == [b"a"]
    assert lines.restarts == 1


def test_a_log_that_was_cut_back_and_grew_longer_is_read_again(log: Path) -> None:
    log.write_bytes(b"a\nb 0.5 s\nc 0.5 s\n")
    lines = Lines(log)
    lines.poll()
    with log.open("r+b") as file:
        file.truncate(2)
        file.seek(2)
        file.write(b"engine\nb 0.7 s\nc 0.6 s\nd\n")
    assert lines.poll() == [b"a", b"engine", b"b 0.7 s", b"c 0.6 s", b"d"]


def test_a_very_long_line_is_shortened_and_the_rest_is_read(log: Path) -> None:
    log.write_bytes(b"a\n" + b"x" * (3 * tail.MAX_LINE) + b"\nb\n")
    lines = Lines(log).poll()
    assert [len(line) for line in lines] == [1, tail.MAX_LINE, 1]
    assert lines[2] == b"b"


def test_reading_stops_at_the_deadline_and_continues(log: Path) -> None:
    log.write_bytes(b"x" * 9 + b"\n" + b"0123456789\n" * 400_000)
    lines = Lines(log)
    steps = 0
    while lines.reader.poll(time.monotonic() - 1):
        steps += 1
    assert steps > 3
    assert len(lines) == 400_001
    assert lines.reader.share == 1


def test_curves_keep_peaks_and_stay_small() -> None:
    table = CurveTable(buckets=100)
    for at in range(1, 100_001):
        table.add(at, {"loss": 9.0 if at == 54_321 else -9.0 if at == 777 else at / 1e5})
    found = table.to_json(["loss"])
    values = [value for value in found["columns"]["loss"] if value is not None]
    assert found["width"] == 1024
    assert len(found["rounds"]) == len(found["columns"]["loss"]) <= 200
    assert max(values) == 9
    assert min(values) == -9


def test_curves_without_thinning_are_exact() -> None:
    table = CurveTable(buckets=4)
    for at, value in ((1, 0.5), (2, None), (4, 0.25)):
        table.add(at, {"a": value})
    assert table.to_json(["a", "b"]) == {
        "width": 1,
        "rounds": [1, 2, 3, 4],
        "columns": {"a": [0.5, None, None, 0.25], "b": [None] * 4},
    }


def test_a_bucket_shows_its_extremes_in_the_order_in_which_they_occurred() -> None:
    table = CurveTable(buckets=2)
    for at, value in enumerate((1.0, 4.0, 3.0, 2.0), 1):
        table.add(at, {"a": value})
    assert table.to_json(["a"]) == {"width": 2, "rounds": [1, 2, 3, 4], "columns": {"a": [1, 4, 3, 2]}}


def test_participation_counts_clients_and_rounds_in_groups() -> None:
    grid = ParticipationGrid(clients=6, rows=3, columns=2)
    grid.add(1, [0, 1, 5])
    grid.add(2, [0], refused=[5])
    grid.add(3, [2, 99, -1])
    found = grid.to_json()
    assert (found["group"], found["width"]) == (2, 2)
    assert found["used"] == [[3, 0, 1], [0, 1, 0]]
    assert found["refused"] == [[0, 0, 1], [0, 0, 0]]


def test_the_log_of_a_run_gives_its_matrix_and_the_bound_of_its_certificate() -> None:
    log = RunLog()
    for event in events(rounds=2):
        log.add_line(json.dumps({"event": event.event, **vars(event)}).encode())
    assert log.matrix == {1: [0.9, 0.8], 2: [0.8, 0.9]}
    assert log.position == log.total_rounds == 4
    curves = log.curves.to_json(["bound", "drift", "accuracy/paper"])["columns"]
    # (0 + 1 · 0.5) / 1.25 = 0.4, then (0.4 + 0.5) / 1.25 = 0.72
    assert curves["bound"] == [None, None, 0.4, 0.72]
    assert curves["drift"] == [None, None, 0.3, 0.3]
    assert curves["accuracy/paper"] == [0.9, 0.9, 0.8, 0.8]
    assert log.problems == []


def test_the_overview_needs_only_both_ends_of_a_log(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", stop_after=1, rounds=10_000)
    append(run, *(round_finished(1, number, {"paper": number / 1e4}) for number in range(6_000)))
    row = json.loads(RunIndex(tmp_path).rows()["a"])
    assert (row["done"], row["total"], row["state"], row["acc"]) == (6_000, 20_000, "stopped", 0.5999)


def test_a_run_that_a_process_works_on_is_running_and_its_time_left_is_known(tmp_path: Path) -> None:
    from fedspecial.runs.directory import claimed

    run = write_run(tmp_path / "a", stop_after=4)
    index = RunIndex(tmp_path)
    assert json.loads(index.rows()["a"])["state"] == "stopped"
    with claimed(run):
        row = json.loads(index.rows()["a"])
        assert (row["state"], row["seconds_left"]) == ("running", 2.0 * 6)
    assert json.loads(index.rows()["a"])["state"] == "stopped"


def test_looking_at_a_run_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    import threading

    from fedspecial.runs.directory import claimed
    from fedspecial.ui.state import _is_claimed

    run = write_run(tmp_path / "a", stop_after=4)
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            _is_claimed(run)

    watchers = [threading.Thread(target=look) for _ in range(2)]
    for thread in watchers:
        thread.start()
    try:
        for _ in range(50):
            with claimed(run):
                pass
    finally:
        done.set()
        for thread in watchers:
            thread.join()


def test_a_run_that_ended_with_an_error_is_failed_until_it_is_continued(tmp_path: Path) -> None:
    from fedspecial.runs.directory import failure_recorded

    run = write_run(tmp_path / "a", stop_after=4)
    with pytest.raises(RuntimeError), failure_recorded(run):
        raise RuntimeError("out of memory")
    index = RunIndex(tmp_path)
    row = json.loads(index.rows()["a"])
    assert (row["state"], row["reason"]) == ("failed", "RuntimeError: out of memory")
    time.sleep(0.25)
    append(run, EngineStarted(1))
    assert json.loads(index.rows()["a"])["state"] == "stopped"


def test_memory_stays_bounded_with_many_open_runs(tmp_path: Path) -> None:
    from fedspecial.ui.index import MAX_OPEN

    for number in range(MAX_OPEN + 5):
        write_run(tmp_path / f"run-{number:02d}", stop_after=2)
    index = RunIndex(tmp_path)
    for name in index.runs():
        assert index.open(name) is not None
    assert len(index._open) == MAX_OPEN


def test_a_resumed_log_shows_what_an_uninterrupted_one_shows(tmp_path: Path) -> None:
    from fedspecial.ui.views import run as view

    whole, cut = write_run(tmp_path / "whole"), write_run(tmp_path / "cut", stop_after=7)
    index = RunIndex(tmp_path)
    view(index, ["cut"])
    at = sum(len(line) for line in (cut / "events.jsonl").read_bytes().splitlines(keepends=True)[:4])
    log = EventLog(cut / "events.jsonl", cut=at)
    log.write(EngineStarted(1))
    for event in list(events())[4:]:
        log.write(event)
    log.close()
    found = [view(index, [run.name]).parts for run in (cut, whole)]
    for part in ("curves", "matrix", "certificates", "participation"):
        assert found[0][part] == found[1][part]


def test_a_run_that_has_not_begun_is_known_by_its_settings(tmp_path: Path) -> None:
    write_run(tmp_path / "a", stop_after=0)
    row = json.loads(RunIndex(tmp_path).rows()["a"])
    assert (row["benchmark"], row["method"], row["seed"], row["total"]) == ("digits-shift", "special", 25, 0)


def test_the_range_of_the_main_metric_decides_how_it_is_written() -> None:
    log = RunLog()
    first = next(iter(events()))
    log.add_line(json.dumps({"event": first.event, **vars(first), "metric": {"name": "r2"}}).encode())
    assert (log.scale.title, log.scale.in_percent) == ("R²", False)


def test_the_overview_counts_the_domains_of_an_extension_that_is_running(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (run / "result.json").unlink()
    found = directory.settings(run)
    directory.write_settings(run, found, {"data": {"paper": "1", "neon": "2", "photo": "3"}})
    append(run, RunExtended(3, ["photo"], "ab" * 32), round_finished(3, 0, {"paper": 0.6, "neon": 0.7, "photo": 0.8}))
    row = json.loads(RunIndex(tmp_path).rows()["a"])
    assert (row["done"], row["total"], row["acc"]) == (9, 12, 0.7)
    assert row["problems"] == []


def test_where_domains_return_every_span_of_rounds_has_its_domain(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", stop_after=1)
    lines = (run / "events.jsonl").read_text().replace('"visits": []', '"visits": ["paper", "neon", "paper", "neon"]')
    (run / "events.jsonl").write_text(lines)
    files = RunFiles(tmp_path, run)
    files.poll()
    assert (files.curves()["tasks"], files.curves()["points"]) == (["paper", "neon"], ["paper", "neon"] * 2)


def test_runs_that_differ_in_how_they_are_executed_are_one_group(tmp_path: Path) -> None:
    text = (resources.files("fedspecial.ui") / "static" / "compare.js").read_text(encoding="utf-8")
    (names,) = re.findall(r"NOT_COMPARED = new Set\((\[.*?\])\)", text)
    assert not EXECUTION.difference(json.loads(names))
