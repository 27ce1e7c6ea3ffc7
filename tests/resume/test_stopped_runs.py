"""Runs stopped with Ctrl-C, finished runs, and runs that another process is working on."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import torch
from runs import assert_same_run, contents

import fedspecial
from fedspecial.core.events import Event
from fedspecial.runs import directory
from processes import Fork


def test_ctrl_c_prints_how_to_resume(fork: Fork, tiny: list[str], finished_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    outcome = fork("run", *tiny, f"out={folder}", kill_at=["training", 9, signal.SIGINT])
    assert outcome.code == 130
    assert outcome.stderr.strip() == f"stopped; continue with: fedspecial resume {folder}"
    outcome = fork("resume", folder)
    assert outcome.code == 0
    assert "continuing with task 1, round 2" in outcome.stdout
    assert_same_run(folder, finished_run)


def test_resuming_a_finished_run_says_so_and_changes_nothing(fork: Fork, finished_run: Path) -> None:
    before = contents(finished_run)
    outcome = fork("resume", finished_run)
    assert outcome.code == 0
    assert outcome.stdout == f"{finished_run}: this run is finished; nothing to do\n"
    assert outcome.stderr == ""
    assert contents(finished_run) == before


def test_a_run_that_another_process_finishes_meanwhile_is_only_read(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    before, look, looks = contents(folder), directory.finished, iter([True])
    monkeypatch.setattr(directory, "finished", lambda run: None if next(looks, False) else look(run))
    events: list[Event] = []
    result = fedspecial.resume(folder, listeners=[events.append])
    assert (result.folder, events, contents(folder)) == (folder, [], before)


def test_a_run_is_resumed_with_its_recorded_thread_count(
    fork: Fork, tiny: list[str], finished_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    fork("run", *tiny, f"out={folder}", kill_at=["training", 29])
    thread_counts: set[int] = set()

    def listener(event: Event) -> None:
        thread_counts.add(torch.get_num_threads())

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        fedspecial.resume(folder, listeners=[listener])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert thread_counts == {1}
    assert_same_run(folder, finished_run)


def test_a_run_that_another_process_works_on_is_not_resumed(fork: Fork, tiny: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fork("run", *tiny, f"out={folder}", kill_at=["training", 29])
    before = contents(folder)
    with directory.claimed(folder):
        assert fork("resume", folder).error_line == f"{folder}: another process is working on this run"
    assert contents(folder) == before
    assert fork("resume", folder).code == 0


def test_a_run_directory_may_be_moved_before_it_is_resumed(
    fork: Fork, tiny: list[str], finished_run: Path, tmp_path: Path
) -> None:
    fork("run", *tiny, f"out={tmp_path / 'old'}", kill_at=["training", 29])
    (tmp_path / "old").rename(tmp_path / "new")
    assert fork("resume", tmp_path / "new").code == 0
    assert not (tmp_path / "old").exists()
    assert_same_run(tmp_path / "new", finished_run)
