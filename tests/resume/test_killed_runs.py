"""SIGKILL at a named point, then resume: the same model, events and result as without an interruption."""

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
    ("first settings", 2),
    ("training", 11),
    ("training", 29),
    ("before fsync of a blob", 6),
    ("before fsync of checkpoint.json", 4),
    ("after rename of checkpoint.json", 5),
    ("between rename and event", 4),
    ("before a round's event", 5),
    ("between last round and task_finished", 2),
    ("before run_finished", 1),
    ("plots", 1),
    ("result.json", 1),
]


@pytest.mark.parametrize(("point", "number"), POINTS)
def test_a_run_killed_at_any_point_resumes_to_the_same_result(
    fork: Fork, tiny: list[str], finished_run: Path, tmp_path: Path, point: str, number: int
) -> None:
    folder = tmp_path / "run"
    assert fork("run", *tiny, f"out={folder}", kill_at=[point, number]).code == KILLED
    assert not (folder / "result.json").exists()
    outcome = fork("resume", folder)
    assert outcome.code == 0, outcome.stderr
    assert_same_run(folder, finished_run)


def test_a_run_killed_at_every_point_in_sequence_resumes_to_the_same_result(
    fork: Fork, tiny: list[str], finished_run: Path, tmp_path: Path
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
        "between last round and task_finished",
        "training",
        "before run_finished",
        "plots",
        "result.json",
    ):
        assert fork(*command, kill_at=[point]).code == KILLED
        command = ["resume", str(folder)]
    assert fork(*command).code == 0
    assert_same_run(folder, finished_run)


def test_a_run_killed_while_torch_is_imported_is_resumed_with_its_recorded_thread_count(
    tiny: list[str], finished_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    script = Path(__file__).parent / "kill_points.py"
    command = [sys.executable, str(script), "import of torch", "1", "run", *tiny, f"out={folder}"]
    assert subprocess.run(command, env=ENVIRONMENT, check=False).returncode == KILLED
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]
    outcome = fresh("resume", folder, OMP_NUM_THREADS="2")
    assert outcome.code == 0, outcome.stderr
    assert_same_run(folder, finished_run)


def test_a_kill_before_the_settings_are_written_leaves_no_run_directory(
    fork: Fork, tiny: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert fork("run", *tiny, f"out={folder}", kill_at=["first settings"]).code == KILLED
    assert not folder.exists()
    assert fork("run", *tiny, f"out={folder}", kill_at=["training"]).code == KILLED
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
    others = [setting for setting in tiny if not setting.startswith(("model=", "width="))]
    command = [*others, *(settings.split() if "model=" in settings else ["model=mlp", "width=8", *settings.split()])]
    assert fork("run", *command, f"out={tmp_path / 'uninterrupted'}").code == 0
    assert fork("run", *command, f"out={tmp_path / 'run'}", kill_at=["training", 26]).code == KILLED
    assert fork("resume", tmp_path / "run", kill_at=["before fsync of checkpoint.json"]).code == KILLED
    outcome = fork("resume", tmp_path / "run")
    assert outcome.code == 0, outcome.stderr
    assert_same_run(tmp_path / "run", tmp_path / "uninterrupted")


def test_without_a_checkpoint_inside_a_task_the_task_is_repeated(
    fork: Fork, tiny: list[str], finished_run: Path, tmp_path: Path
) -> None:
    one_checkpoint_per_task = [*(s for s in tiny if not s.startswith("checkpoint_seconds")), "checkpoint_seconds=1000"]
    folder = tmp_path / "run"
    assert fork("run", *one_checkpoint_per_task, f"out={folder}", kill_at=["training", 29]).code == KILLED
    outcome = fork("resume", folder)
    assert "continuing with task 2, round 1" in outcome.stdout
    assert_same_run(folder, finished_run)
