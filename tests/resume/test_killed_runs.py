"""SIGKILL at a named point, then resume: the same model, the same events, the same result as a whole run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from runs import assert_same_run

from processes import ENVIRONMENT, Fork, fresh

KILLED = -9

# A round of the small run is 2 clients × 3 steps; each round ends with a checkpoint.
POINTS = [
    ("first words", 2),
    ("training", 11),
    ("training", 29),
    ("before fsync of a blob", 6),
    ("before fsync of checkpoint.json", 4),
    ("after rename of checkpoint.json", 5),
    ("between rename and event", 4),
    ("before a round's event", 5),
    ("between last round and row", 2),
    ("before run_finished", 1),
    ("plots", 1),
    ("result.json", 1),
]


@pytest.mark.parametrize(("point", "number"), POINTS)
def test_a_run_killed_at_a_named_point_ends_as_if_it_had_not_been(
    fork: Fork, tiny: list[str], whole: Path, tmp_path: Path, point: str, number: int
) -> None:
    folder = tmp_path / "run"
    assert fork("run", *tiny, f"out={folder}", die=[point, number]).code == KILLED
    assert not (folder / "result.json").exists()
    outcome = fork("resume", folder)
    assert outcome.code == 0, outcome.stderr
    assert_same_run(folder, whole)


def test_kills_one_after_another_at_every_point_do_not_add_up(
    fork: Fork, tiny: list[str], whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    command = ["run", *tiny, f"out={folder}"]
    for point in (
        "training",
        "before fsync of a blob",
        "before fsync of checkpoint.json",
        "before fsync of checkpoint.json",
        "between rename and event",
        "before a round's event",
        "between last round and row",
        "training",
        "before run_finished",
        "plots",
        "result.json",
    ):
        assert fork(*command, die=[point]).code == KILLED
        command = ["resume", str(folder)]
    assert fork(*command).code == 0
    assert_same_run(folder, whole)


def test_a_run_killed_while_torch_is_imported_is_resumed_with_its_own_thread_count(
    tiny: list[str], whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    dying = Path(__file__).parent / "kill_points.py"
    command = [sys.executable, str(dying), "import of torch", "1", "run", *tiny, f"out={folder}"]
    assert subprocess.run(command, env=ENVIRONMENT, check=False).returncode == KILLED
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]
    outcome = fresh("resume", folder, OMP_NUM_THREADS="2")
    assert outcome.code == 0, outcome.stderr
    assert_same_run(folder, whole)


def test_a_kill_before_the_words_are_written_leaves_no_run_directory(
    fork: Fork, tiny: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert fork("run", *tiny, f"out={folder}", die=["first words"]).code == KILLED
    assert not folder.exists()
    assert fork("run", *tiny, f"out={folder}", die=["training"]).code == KILLED
    assert folder.exists()


@pytest.mark.parametrize(
    "settings",
    [
        "model=cnn width=4 batch_norm=local method=special mu=0.5",
        "model=cnn width=4 batch_norm=mean-only method=special-c",
        "momentum=0.9 weighting=samples method=fedprox partition=iid",
    ],
)
def test_client_states_payloads_and_statistics_survive_a_kill(
    fork: Fork, tiny: list[str], tmp_path: Path, settings: str
) -> None:
    mine = [word for word in tiny if not word.startswith(("model=", "width="))]
    command = [*mine, *(settings.split() if "model=" in settings else ["model=mlp", "width=8", *settings.split()])]
    assert fork("run", *command, f"out={tmp_path / 'whole'}").code == 0
    assert fork("run", *command, f"out={tmp_path / 'run'}", die=["training", 26]).code == KILLED
    assert fork("resume", tmp_path / "run", die=["before fsync of checkpoint.json"]).code == KILLED
    outcome = fork("resume", tmp_path / "run")
    assert outcome.code == 0, outcome.stderr
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_without_a_checkpoint_in_between_a_task_is_played_again(
    fork: Fork, tiny: list[str], whole: Path, tmp_path: Path
) -> None:
    seldom = [*(word for word in tiny if not word.startswith("checkpoint_seconds")), "checkpoint_seconds=1000"]
    folder = tmp_path / "run"
    assert fork("run", *seldom, f"out={folder}", die=["training", 29]).code == KILLED
    outcome = fork("resume", folder)
    assert "continuing with task 2, round 1" in outcome.stdout
    assert_same_run(folder, whole)
