"""The commands as a new user calls them: help, list, run, evaluate, and a run from recorded settings."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from processes import ENVIRONMENT, Fork, Outcome

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

Call = Callable[..., Outcome]

KEYS = {
    *("method", "benchmark", "seed", "tasks", "matrix", "acc", "bwt", "worst_drop", "forgetting", "rounds_to_best"),
    *("seconds_per_round", "seconds_between_tasks", "bytes_up", "bytes_down", "bytes_once"),
    *("client_memory_bytes", "client_memory_paper_bytes"),
    *("lam", "mu", "drift", "model_sha256", "refused_updates", "rounds_held"),
    *("matrix_masked", "acc_masked", "bwt_masked", "objective", "metric", "metrics", "notes", "warnings"),
    *("missing_classes", "privacy", "stream", "points", "average_over_time", "worst_over_time", "forgetting_over_time"),
    *("server_lrs", "detection", "time"),
}

HELP = """
import sys
from fedspecial.cli.main import main
for command in ("", "run", "resume", "compare", "evaluate", "list"):
    sys.argv = ["fedspecial", *command.split(), "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code
    print("=====")
assert "torch" not in sys.modules, "help must not import torch"
"""


def test_help_of_every_command_shows_an_example_and_does_not_import_torch() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    overview, *pages, _ = done.stdout.split("=====\n")
    for command, page in zip(("run", "resume", "compare", "evaluate", "list"), pages, strict=True):
        assert command in overview
        assert f"Example:  fedspecial {command} " in page
        assert f"Usage: fedspecial {command} " in page


def test_without_a_command_the_help_is_shown(call: Call) -> None:
    outcome = call()
    assert "Usage: fedspecial" in outcome.stdout + outcome.stderr


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", ["fedavg", "fedprox", "special-c", "special"]),
        ("models", ["logistic", "mlp", "cnn", "resnet18"]),
        ("benchmarks", ["digits-shift", "digit10", "folders"]),
    ],
)
def test_list_shows_each_name_with_a_description(call: Call, what: str, names: list[str]) -> None:
    outcome = call("list", what)
    assert outcome.code == 0
    lines = dict(line.split(maxsplit=1) for line in outcome.stdout.splitlines())
    assert set(names) <= set(lines)
    assert all(lines.values())


def test_a_run_writes_the_documented_files_and_keys(finished_run: Path) -> None:
    files = {path.name for path in finished_run.iterdir()}
    assert files - {"drift.png"} == {
        *("config.yaml", "schema.json", "events.jsonl", "result.json", "model.safetensors"),
        *("README.md", "matrix.png", "curves.png", "checkpoint"),
    }
    result = json.loads((finished_run / "result.json").read_text())
    assert set(result) - {"certificates"} == KEYS
    assert result["tasks"] == ["paper", "neon"]
    assert len(result["matrix"]) == len(result["matrix"][0]) == 2
    assert result["model_sha256"] in (finished_run / "README.md").read_text()
    for figure in ("matrix.png", "curves.png"):
        assert (finished_run / figure).read_bytes().startswith(b"\x89PNG")
    about = yaml.safe_load((finished_run / "config.yaml").read_text())["about"]
    assert {"fedspecial", "torch", "python", "data"} <= set(about)


def test_the_recorded_settings_give_the_same_model_in_a_new_numbered_directory(fork: Fork, finished_run: Path) -> None:
    expected = json.loads((finished_run / "result.json").read_text())["model_sha256"]
    outcome = fork("run", finished_run / "config.yaml")
    assert outcome.stdout.startswith("run directory: runs/digits-shift-special-001\n"), outcome.stderr
    assert "all files are in runs/digits-shift-special-001\n" in outcome.stdout
    folder = fork.folder / "runs" / "digits-shift-special-001"
    assert json.loads((folder / "result.json").read_text())["model_sha256"] == expected
    fork("run", finished_run / "config.yaml", kill_at=["training"])
    assert (folder.parent / "digits-shift-special-002" / "config.yaml").exists()


def test_evaluate_repeats_the_last_row_of_the_matrix(fork: Fork, finished_run: Path) -> None:
    result = json.loads((finished_run / "result.json").read_text())
    outcome = fork("evaluate", finished_run)
    row = zip(result["tasks"], result["matrix"][-1], strict=True)
    assert outcome.stdout == "".join(f"{name}: {100 * value:.2f} %\n" for name, value in row)


def test_evaluate_tests_on_domains_that_were_not_learned(fork: Fork, finished_run: Path) -> None:
    outcome = fork("evaluate", finished_run, "digits-shift", "domains=photo,neon")
    assert re.fullmatch(r"photo: \d+\.\d\d %\nneon: \d+\.\d\d %\n", outcome.stdout), outcome
    assert fork("evaluate", finished_run).stdout.splitlines()[1] == outcome.stdout.splitlines()[1]


def test_an_unfinished_run_is_not_evaluated(fork: Fork, tiny: list[str], tmp_path: Path) -> None:
    fork("run", *tiny, f"out={tmp_path / 'run'}", kill_at=["training"])
    assert "the run is not finished" in fork("evaluate", tmp_path / "run").error_line


def test_progress_is_plain_lines_without_a_terminal(fork: Fork, tiny: list[str], tmp_path: Path) -> None:
    outcome = fork("run", *tiny, f"out={tmp_path / 'run'}")
    assert "\x1b" not in outcome.stdout
    assert "\r" not in outcome.stdout
    lines = [line for line in outcome.stdout.splitlines() if "round" in line and "accuracy" in line]
    assert len(lines) == 6
    for number, line in enumerate(lines):
        task, round = number // 3 + 1, number % 3 + 1
        name = ("paper", "neon")[task - 1]
        assert re.fullmatch(rf"task {task}/2 {name} +round +{round}/3 +accuracy +\d+\.\d % +\d+ s left", line)
    assert "ACC" in outcome.stdout
    assert "BWT" in outcome.stdout
    assert "worst drop" in outcome.stdout


def test_progress_on_a_terminal_is_a_live_display(fork: Fork, tiny: list[str], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    output = bytearray()

    def read() -> None:
        while True:
            try:
                output.extend(os.read(ours, 4096))
            except OSError:
                return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    done = fork("run", *tiny, f"out={tmp_path / 'run'}", terminal=os.ttyname(theirs))
    os.close(theirs)
    reader.join(timeout=240)
    os.close(ours)
    assert done.code == 0, done.stderr
    text = output.decode()
    assert "\x1b[?25l" in text, "the cursor is hidden while the display is live"
    assert "\x1b[?25h" in text, "and shown again"
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert re.search(r"task 2/2 neon +round +3/3 +accuracy +\d+\.\d %", plain)
    assert re.search(r"\d:\d\d:\d\d left", plain)
    assert "left" in plain


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "fedspecial", "list", "methods"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "special" in done.stdout
