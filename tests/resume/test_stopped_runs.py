"""Ctrl-C, runs that are finished, runs that another process works on."""

from __future__ import annotations

import signal
from pathlib import Path

import torch
from runs import assert_same_run, contents

import fedspecial
from fedspecial.core.events import Event
from fedspecial.runs import directory
from processes import Fork


def test_ctrl_c_says_how_to_go_on(fork: Fork, tiny: list[str], whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    outcome = fork("run", *tiny, f"out={folder}", die=["training", 9, signal.SIGINT])
    assert outcome.code == 130
    assert outcome.stderr.strip() == f"stopped; continue with: fedspecial resume {folder}"
    outcome = fork("resume", folder)
    assert outcome.code == 0
    assert "continuing with task 1, round 2" in outcome.stdout
    assert_same_run(folder, whole)


def test_a_finished_run_is_said_to_be_finished_and_left_alone(fork: Fork, whole: Path) -> None:
    before = contents(whole)
    outcome = fork("resume", whole)
    assert outcome.code == 0
    assert outcome.stdout == f"{whole}: this run is finished; nothing to do\n"
    assert outcome.stderr == ""
    assert contents(whole) == before


def test_a_run_goes_on_with_the_thread_count_it_recorded(
    fork: Fork, tiny: list[str], whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    fork("run", *tiny, f"out={folder}", die=["training", 29])
    seen: set[int] = set()

    def listener(event: Event) -> None:
        seen.add(torch.get_num_threads())

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        fedspecial.resume(folder, listeners=[listener])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == {1}
    assert_same_run(folder, whole)


def test_a_run_that_another_process_works_on_is_left_to_it(fork: Fork, tiny: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fork("run", *tiny, f"out={folder}", die=["training", 29])
    before = contents(folder)
    with directory.claimed(folder):
        assert fork("resume", folder).complaint == f"{folder}: another process is working on this run"
    assert contents(folder) == before
    assert fork("resume", folder).code == 0


def test_a_run_may_be_moved_before_it_goes_on(fork: Fork, tiny: list[str], whole: Path, tmp_path: Path) -> None:
    fork("run", *tiny, f"out={tmp_path / 'here'}", die=["training", 29])
    (tmp_path / "here").rename(tmp_path / "there")
    assert fork("resume", tmp_path / "there").code == 0
    assert not (tmp_path / "here").exists()
    assert_same_run(tmp_path / "there", whole)
