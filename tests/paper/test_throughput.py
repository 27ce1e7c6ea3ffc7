"""Plans print hours that follow from measured rounds, for one study or several, and GPUs get their own processes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from fedspecial.paper.grid import StudyRequest
from fedspecial.paper.planning import plan
from fedspecial.paper.registry import STUDIES
from fedspecial.paper.requests import all_studies
from fedspecial.paper.throughput import ROUNDS, TASKS, Timed, add_throughput, key_of, read_throughput, run_seconds
from fedspecial.runs.job_pools import _prepare_process
from paper.study_factories import ON_DISK
from processes import Fork

TINY = ["--scale", "tiny", "--methods", "special,fedavg", "--seeds", "25"]


def test_the_time_of_a_run_is_that_of_its_rounds_and_of_the_rest() -> None:
    found = Timed(per_round=2.0, rest=6.0, device="cpu")
    assert found.whole_run(20, 4, evaluated_every_round=False) == 2.0 * 80 + 6.0 * 4 / TASKS
    assert found.whole_run(20, 4, evaluated_every_round=True) == 2.0 * 80 + 6.0 * 80 / (ROUNDS * TASKS)
    short = found.whole_run(ROUNDS, TASKS, evaluated_every_round=False)
    assert short == found.whole_run(ROUNDS, TASKS, evaluated_every_round=True) == 2.0 * ROUNDS * TASKS + 6.0


def test_a_plan_at_scale_paper_needs_measured_rounds(tmp_path: Path) -> None:
    request = StudyRequest("main", "paper", (25,), ("digit10",), ("fedavg", "special"))
    before = plan([request], tmp_path, None, {}, dict(ON_DISK))
    assert before.unknown == ("digit10 fedavg", "digit10 special")
    for method, seconds in (("fedavg", 10.0), ("special", 11.0)):
        add_throughput(tmp_path, key_of("paper", "digit10", method), Timed(seconds, 0.0, "cuda"))
    measured = read_throughput(tmp_path)
    assert run_seconds(measured, "paper", "digit10", "special") == 11.0 * 20 * 4, "20 rounds, four domains"
    after = plan([request], tmp_path, None, {}, dict(ON_DISK), measured)
    assert after.unknown == ()
    times = {job.method: seconds for job, seconds in zip(after.jobs, after.seconds, strict=True)}
    assert times == pytest.approx({"fedavg": 800.0, "special": 880.0})


def test_other_settings_scale_the_measured_time(tmp_path: Path) -> None:
    measured = {key_of("paper", "digit10", "special"): Timed(10.0, 0.0, "cpu")}
    request = StudyRequest("participation", "paper", (25,), ("digit10",), ("special",))
    found = plan([request], tmp_path, None, {}, dict(ON_DISK), measured)
    by_clients = {job.settings["clients_per_round"]: s for job, s in zip(found.jobs, found.seconds, strict=True)}
    assert by_clients[2] < 800.0 < by_clients[6] < by_clients[8]


def test_damaged_measurements_are_refused_in_one_line(fork: Fork, tmp_path: Path) -> None:
    (tmp_path / "throughput.json").write_text('{"tiny digits-shift special": {}}')
    outcome = fork("study", "main", *TINY, "--out", tmp_path, "--plan")
    assert "throughput.json: damaged or edited; delete it and measure again" in outcome.error_line


def test_a_plan_of_several_studies_counts_shared_runs_once(fork: Fork, tmp_path: Path) -> None:
    options = ["--out", tmp_path / "studies", "--results", tmp_path / "results", "--plan"]
    outcome = fork("study", "main", "per-task", "location", *TINY, *options, "--gpus", "0,1")
    assert outcome.code == 0, outcome.stderr
    assert "main: 3 runs, 3 to be added" in outcome.stdout
    assert "per-task: 3 runs, 0 to be added" in outcome.stdout
    total = int(re.search(r"^(\d+) runs: ", outcome.stdout, re.M).group(1))
    assert total == sum(int(n) for n in re.findall(r"(\d+) to be added", outcome.stdout))
    assert re.search(r"about 0\.0\d GPU hours, 0\.0\d hours on 2 GPUs", outcome.stdout)
    everything = fork("study", "all", *TINY, *options)
    assert everything.code == 0, everything.stderr
    assert "lambda: " in everything.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_calibration_times_each_method_once_and_the_plan_uses_it(fork: Fork, tmp_path: Path) -> None:
    out = tmp_path / "studies"
    command = ["study", "calibrate", "main", "--scale", "tiny", "--methods", "special,fedavg", "--out", out]
    first = fork(*command)
    assert first.code == 0, first.stderr
    found = json.loads((out / "throughput.json").read_text())
    assert set(found) == {"tiny digits-shift fedavg", "tiny digits-shift special"}
    assert all(entry["per_round"] > 0 and entry["device"] == "cpu" for entry in found.values())
    before = (out / "throughput.json").stat().st_mtime_ns
    assert fork(*command).stdout == first.stdout
    assert (out / "throughput.json").stat().st_mtime_ns == before
    # A run that takes an hour per round is seen in the plan.
    found["tiny digits-shift special"] |= {"per_round": 3600.0, "rest": 0.0}
    (out / "throughput.json").write_text(json.dumps(found))
    planned = fork("study", "main", "--scale", "tiny", "--methods", "special", "--seeds", "25", "--out", out, "--plan")
    assert "about 16.00 core hours" in planned.stdout, "four rounds of four domains"


def test_all_means_every_study_of_the_scale_that_has_a_requested_benchmark() -> None:
    every = all_studies(StudyRequest("all", "cpu"))
    assert [request.study for request in every] == [study.name for study in STUDIES if "cpu" in study.scales]
    assert {request.benchmarks for request in every} == {None}
    few = all_studies(StudyRequest("all", "cpu", (25,), ("fdu-mtl", "pacs")))
    some = {request.study: request.benchmarks for request in few}
    assert some["language"] == ("fdu-mtl",)
    assert some["main"] == ("pacs",)
    assert "lambda" not in some


class OneGpu:
    def get(self) -> str:
        return "1"


def test_a_process_of_the_pool_sees_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedspecial.runs.job_pools._end_with_parent", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    _prepare_process(OneGpu())
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
