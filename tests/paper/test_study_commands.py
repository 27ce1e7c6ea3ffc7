"""The commands `fedspecial study`, `report` and `tune` with real runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from fedspecial.report.comparison import MeanStd
from fedspecial.runs.tune import Search, best, fine
from processes import Fork, Outcome

TUNED = [
    *("digits-shift", "domains=paper,neon", "cap=100", "model=mlp", "width=8"),
    *("rounds=1", "local_steps=1", "clients=2", "clients_per_round=2", "min_per_client=2"),
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands") / "studies"


@pytest.fixture(scope="module")
def command(out: Path) -> list[str]:
    options = ["--scale", "tiny", "--seeds", "25", "--methods", "special,fedavg", "--out", str(out)]
    return ["study", "main", "per-task", *options]


@pytest.fixture(scope="module")
def first(fork: Fork, command: list[str]) -> Outcome:
    outcome = fork(*command)
    assert outcome.code == 0, outcome.stderr
    return outcome


def test_a_study_shows_its_progress_and_is_run_once(fork: Fork, first: Outcome, command: list[str], out: Path) -> None:
    lines = [line for line in first.stdout.splitlines() if re.match(r"\[\d/3\] digits-shift-", line)]
    assert len(lines) == len(list((out / "runs").iterdir())) == 3, "SPECIAL, and FedAvg with both server learning rates"
    assert all("ACC" in line and line.endswith("left") for line in lines)
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}
    again = fork(*command)
    assert "3 runs, 3 already finished" in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}


def test_workers_do_not_change_the_runs_of_a_study(fork: Fork, first: Outcome, out: Path, tmp_path: Path) -> None:
    options = ["--scale", "tiny", "--seeds", "25", "--methods", "special", "--out", str(tmp_path)]
    outcome = fork("study", "main", *options, "workers=2")
    assert outcome.code == 0, outcome.stderr
    (run,) = (tmp_path / "runs").iterdir()
    results = [json.loads((folder / "result.json").read_text()) for folder in (run, out / "runs" / run.name)]
    assert results[0]["model_sha256"] == results[1]["model_sha256"]


def test_the_report_shows_the_results_of_the_runs(fork: Fork, first: Outcome, out: Path) -> None:
    outcome = fork("report", out)
    assert outcome.code == 0, outcome.stderr
    assert "main (tiny): 3 of 3 runs" in outcome.stdout
    page = (out / "index.html").read_text()
    for run in (out / "runs").iterdir():
        acc = json.loads((run / "result.json").read_text())["acc"]
        assert f">{100 * acc:.2f}<" in page
    assert (out / "REPRODUCIBILITY.md").exists()


def test_the_list_shows_every_study_and_its_cost(fork: Fork) -> None:
    outcome = fork("study", "list", "--scale", "tiny")
    assert outcome.code == 0, outcome.stderr
    assert re.search(r"^lambda +λ, stability and plasticity: scatter plot of ACC and BWT over λ$", outcome.stdout, re.M)
    assert re.search(r"varies: T; 30 runs, about \d+ s", outcome.stdout)


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["study", "mian"], "study 'mian': unknown study (did you mean 'main'?)"),
        (["study", "main", "--scale", "huge"], "scale=huge: expected paper, cpu, tiny"),
        (["study", "main", "--seeds", "a"], "seeds=a: expected whole numbers"),
        (["study", "main", "--seeds", "25,25"], "seeds=25,25: a seed can be given only once"),
        (["study", "main", "--scale", "tiny", "--jobs", "0"], "jobs=0: must be at least 1"),
        (["study", "main", "--scale", "tiny", "--methods", "x"], "methods=x: unknown method"),
        (["study", "main", "rounds=3"], "rounds=3: the runs of a study keep their settings; only"),
        (["report", "nowhere"], "nowhere: not a directory of studies"),
        (["tune", "digits-shift", "lam=0.1"], "lam=0.1: not allowed here, the search sets it"),
        (["tune", "digits-shift", "--method", "fedavg"], "method=fedavg: only special and special-c"),
        (["tune", "digits-shift", "--holdout", "0"], "holdout=0.0: must be greater than 0 and less than 1"),
    ],
)
def test_invalid_input_is_refused_in_one_line(fork: Fork, tmp_path: Path, argv: list[str], complaint: str) -> None:
    options = [] if argv[0] == "report" else ["--out", str(tmp_path / "out")]
    assert complaint in fork(*argv, *options).error_line
    assert list(tmp_path.iterdir()) == []


def test_tune_validates_on_held_out_samples_and_writes_a_runnable_preset(fork: Fork, tmp_path: Path) -> None:
    outcome = fork("tune", *TUNED, "--out", tmp_path / "t")
    assert outcome.code == 0, outcome.stderr
    assert "coarse: λ = 0, 0.2, 0.4, 0.6, 0.8, 1" in outcome.stdout
    runs = [yaml.safe_load((run / "config.yaml").read_text()) for run in (tmp_path / "t" / "runs").iterdir()]
    assert len(runs) == 9
    assert {settings["holdout"] for settings in runs} == {0.2}
    preset = yaml.safe_load((tmp_path / "t" / "preset.yaml").read_text())
    assert "holdout" not in preset
    assert f"best λ = {preset['lam']:g}; run it with" in outcome.stdout
    done = fork("run", tmp_path / "t" / "preset.yaml", f"out={tmp_path / 'run'}")
    assert done.code == 0, done.stderr
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["lam"] == preset["lam"]


def curve(**means: float) -> dict[float, MeanStd]:
    return {float(x.removeprefix("x")) / 10: MeanStd(mean, None) for x, mean in means.items()}


def test_the_fine_grid_is_between_the_best_value_and_its_better_neighbour() -> None:
    assert fine(curve(x0=1, x2=5, x4=4, x6=3)) == (0.25, 0.3, 0.35), "the paper's grid on Digit-10"
    assert fine(curve(x0=4, x2=5, x4=3, x6=3)) == (0.05, 0.1, 0.15), "the paper's grid on PACS"
    assert fine(curve(x0=5, x2=4, x4=3)) == (0.05, 0.1, 0.15)
    assert fine(curve(x6=3, x8=4, x10=5)) == (1.25, 1.5, 2.0), "the optimum is not below the largest value"
    assert fine(curve(x6=3, x8=5, x10=4)) == (0.85, 0.9, 0.95)


def test_of_equally_good_values_the_smallest_is_chosen() -> None:
    assert best(curve(x2=5, x4=5, x0=1)) == 0.2


def test_every_run_of_a_search_has_its_own_directory(tmp_path: Path) -> None:
    search = Search({"benchmark": "digits-shift", "method": "special"}, (25, 26), 0.2, tmp_path)
    assert len({job.folder for job in search.runs((0.0, 0.2, 0.4))}) == 6


def test_skipped_benchmarks_are_listed_once(fork: Fork, tmp_path: Path) -> None:
    outcome = fork("study", "list", "--scale", "cpu", "--data", str(tmp_path))
    skipped = [line for line in outcome.stdout.splitlines() if line.startswith("skipped: ")]
    assert len(skipped) == len(set(skipped))
    assert any("VLCS: data files not found" in line for line in skipped)
    assert "; skipped" not in outcome.stdout
