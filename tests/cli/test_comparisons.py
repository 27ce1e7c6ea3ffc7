"""compare: several methods and seeds. Each run is started, reused, resumed or refused."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import ENVIRONMENT, Fork, Outcome

FOLDERS = {"special-25", "special-26", "fedavg-25", "fedavg-26"}


@pytest.fixture(scope="module")
def command(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    out = str(tmp_path_factory.mktemp("compare") / "runs")
    options = ["--methods", "special,fedavg", "--seeds", "25,26", "--jobs", "1", "--out", out, "--matrices"]
    return ["compare", *tiny, "lam=0.1", *options]


@pytest.fixture(scope="module")
def folder(command: list[str]) -> Path:
    return Path(command[command.index("--out") + 1])


@pytest.fixture(scope="module")
def first(fork: Fork, tiny: list[str], command: list[str], folder: Path) -> Outcome:
    """A comparison whose output folder already contains one started run."""
    killed = fork(
        "run", *tiny, "method=special", "lam=0.1", "seed=25", f"out={folder / 'special-25'}", kill_at=["training", 9]
    )
    assert killed.code == -9
    outcome = fork(*command)
    assert outcome.code == 0, outcome.stderr
    return outcome


def runs_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def sha256(folder: Path) -> str:
    return str(json.loads((folder / "result.json").read_text())["model_sha256"])


def test_the_table_has_mean_and_standard_deviation_of_every_method(first: Outcome, folder: Path) -> None:
    assert runs_in(folder) == FOLDERS
    assert "digits-shift, seeds 25, 26: per cent, mean ± standard deviation" in first.stdout
    rows = [line for line in first.stdout.splitlines() if "±" in line and "│" in line]
    assert [row.split()[1] for row in rows] == ["special", "fedavg"]
    accuracies = [json.loads((folder / f"special-{seed}" / "result.json").read_text())["acc"] for seed in (25, 26)]
    mean, std = 100 * sum(accuracies) / 2, 100 * abs(accuracies[0] - accuracies[1]) / 2**0.5
    assert f"{mean:.2f} ± {std:.2f}" in rows[0]
    assert "fedavg on digits-shift (seed 25, 26)" in first.stdout
    assert re.search(r"\d+ of 24 rounds", first.stdout)
    assert "\x1b" not in first.stdout


def test_a_run_that_was_started_before_continues_to_the_same_model(
    first: Outcome, fork: Fork, tiny: list[str], folder: Path, tmp_path: Path
) -> None:
    assert fork("run", *tiny, "lam=0.1", "seed=25", f"out={tmp_path / 'alone'}").code == 0
    assert sha256(folder / "special-25") == sha256(tmp_path / "alone")


def test_one_seed_has_no_standard_deviation(first: Outcome, fork: Fork, command: list[str]) -> None:
    again = fork(*("25" if word == "25,26" else word for word in command))
    assert again.code == 0, again.stderr
    assert "digits-shift, seed 25: per cent\n" in again.stdout
    assert "±" not in again.stdout


def test_finished_runs_are_reused(first: Outcome, fork: Fork, command: list[str], folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/*")}
    again = fork(*command)
    assert again.code == 0, again.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/*")} == before
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    assert again.stdout.splitlines()[-1].startswith(f"all files are in {folder}")


@pytest.mark.parametrize(
    ("setting", "found"), [("rounds=4", "rounds=3"), ("lam=0.2", "lam=0.1"), ("cap=100", "cap=200")]
)
def test_runs_with_other_settings_are_refused(
    first: Outcome, fork: Fork, command: list[str], folder: Path, setting: str, found: str
) -> None:
    key = setting.partition("=")[0]
    changed = [setting if part.startswith(f"{key}=") else part for part in command]
    message = fork(*changed).error_line
    assert str(folder / "special-25") in message
    assert f"it contains a run with {found}, not {setting}" in message
    assert runs_in(folder) == FOLDERS


def test_a_folder_that_is_not_a_run_directory_is_refused(
    first: Outcome, fork: Fork, command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "fedavg-26").mkdir()
    (tmp_path / "fedavg-26" / "thesis.tex").write_text("the only copy")
    elsewhere = [str(tmp_path) if part == command[command.index("--out") + 1] else part for part in command]
    assert "fedavg-26: this is not a run directory" in fork(*elsewhere).error_line
    assert [path.name for path in tmp_path.rglob("*")] == ["fedavg-26", "thesis.tex"]


@contextmanager
def long_comparison(command: list[str], folder: Path, out: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison in a process of its own that has begun its first run, which has many rounds left."""
    arguments = [str(out) if part == str(folder) else "rounds=200" if part == "rounds=3" else part for part in command]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedspecial.cli.main", *arguments],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not (out / "special-25" / "checkpoint" / "checkpoint.json").exists():
            assert process.poll() is None
            time.sleep(0.05)
        yield process
    finally:
        process.kill()


@pytest.mark.slow
def test_ctrl_c_stops_all_runs_and_prints_how_to_continue(command: list[str], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    with long_comparison(command, folder, out) as process:
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=240)
    assert process.returncode == 130
    assert output.strip() == f"stopped; continue with the same command and --out {out}"
    assert runs_in(out) == {"special-25"}
    shutil.rmtree(out)


def is_running(process: str) -> bool:
    """Whether a process exists and has not ended; one that has ended stays in /proc until its parent notices."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_the_runs_of_a_comparison_that_was_killed_end_too(command: list[str], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    with long_comparison(command, folder, out) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=240)
    assert children
    while any(map(is_running, children)):
        assert not (out / "special-25" / "result.json").exists(), "the run went on to its end"
        time.sleep(0.05)


SCRIPT = """
import sys
import fedspecial
from fedspecial.config import parse_settings
print("executed once")
settings = parse_settings(sys.argv[3:])
print(fedspecial.compare(sys.argv[2], ["special", "fedavg"], [25], jobs=2, out=sys.argv[1], **settings))
"""


@pytest.mark.slow
def test_a_script_needs_no_main_guard_to_compare(tiny: list[str], tmp_path: Path) -> None:
    """The processes of the runs must not execute the script, with all that stands before the comparison, again."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "runs"), *tiny]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("executed once") == 1
    assert "| special |" in done.stdout
    assert runs_in(tmp_path / "runs") == {"special-25", "fedavg-25"}
