"""A committed record of a run stands for the run: studies do not repeat it, and the report shows the same numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedspecial.errors import InputError
from fedspecial.paper.grid import StudyRequest
from fedspecial.paper.metrics import METRICS, FinishedRun, metric
from fedspecial.paper.report import read_results, write_report
from fedspecial.paper.run_records import read_records, write_records
from fedspecial.paper.tables import tables_of
from paper.study_factories import write_studies
from processes import Fork

REQUESTS = [StudyRequest(name, "tiny", (25, 225), None, ("special", "fedavg")) for name in ("main", "location")]


@pytest.fixture
def recorded(finished_run: Path, tmp_path: Path):
    """A directory of studies, its runs, and their records."""
    studies, results = tmp_path / "studies", tmp_path / "results"
    jobs = write_studies(studies, finished_run, REQUESTS)
    write_records(jobs, results)
    return studies, jobs, results


def test_the_report_from_records_has_the_numbers_of_the_report_from_runs(recorded, tmp_path: Path) -> None:
    studies, jobs, results = recorded
    before = [tables_of(result) for result in read_results(studies, tmp_path / "no records")]
    shutil.rmtree(studies / "runs")
    assert [tables_of(result) for result in read_results(studies, results)] == before
    assert read_results(studies, results)[0].finished == read_results(studies, results)[0].wanted
    write_report(studies, studies / "claims.md", results)
    assert f"{jobs[0].folder.name} (record)" in (studies / "index.html").read_text()


def test_every_metric_of_a_study_can_be_read_from_a_record(recorded) -> None:
    _, jobs, results = recorded
    records = read_records(results)
    for job in jobs:
        run, record = FinishedRun.read(job.folder), records.find(job)
        assert {key: metric(key).read(run) for key in METRICS} == {key: metric(key).read(record) for key in METRICS}
        assert record.versions == run.versions


def test_a_record_stands_only_for_a_run_with_the_same_settings(recorded) -> None:
    _, jobs, results = recorded
    records = read_records(results)
    for key, other in (("client_lr", 0.05), ("seed", 26), ("rounds", 5)):
        changed = replace(jobs[0], seed=26 if key == "seed" else 25, settings={**jobs[0].settings, key: other})
        assert records.find(changed) is None, key
    assert records.find(replace(jobs[0], settings={**jobs[0].settings, "workers": 2, "data": "there"})) is not None


def test_a_setting_that_is_newer_than_the_record_must_have_its_default(recorded) -> None:
    _, jobs, results = recorded
    for path in (results / "runs").iterdir():
        content = json.loads(path.read_text())
        for key in ("momentum", "client_lr_decay"):
            content["settings"].pop(key)
        path.write_text(json.dumps(content))
    records = read_records(results)
    assert records.find(jobs[0]) is not None
    assert records.find(replace(jobs[0], settings={**jobs[0].settings, "momentum": 0.9})) is None


def test_records_are_written_once_and_only_for_finished_runs(recorded) -> None:
    _, jobs, results = recorded
    assert len(list((results / "runs").iterdir())) == len(jobs)
    assert write_records(jobs, results) == []
    shutil.rmtree(results)
    (jobs[0].folder / "events.jsonl").unlink()
    assert len(write_records(jobs, results)) == len(jobs) - 1


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"result": {}}'])
def test_a_damaged_record_is_refused_in_one_line(recorded, damage: str) -> None:
    _, jobs, results = recorded
    path = results / "runs" / f"{jobs[0].folder.name}.json"
    path.write_text(damage)
    with pytest.raises(InputError, match=rf"{path.name}: damaged or edited"):
        read_records(results)


def test_a_study_does_not_repeat_recorded_runs(fork: Fork, recorded, tmp_path: Path) -> None:
    _, _, results = recorded
    options = ["--scale", "tiny", "--seeds", "25,225", "--methods", "special,fedavg", "--results", results]
    outcome = fork("study", "main", *options, "--out", tmp_path / "elsewhere", "--record")
    assert outcome.code == 0, outcome.stderr
    assert "6 runs have a record" in outcome.stdout
    assert "no runs needed" in outcome.stdout
    assert not (tmp_path / "elsewhere" / "runs").exists()


def test_a_record_says_on_which_device_the_run_was_and_stands_for_any(recorded) -> None:
    _, jobs, results = recorded
    for path in (results / "runs").iterdir():
        content = json.loads(path.read_text())
        assert content["settings"]["device"] == "cpu"
        content["settings"]["device"] = "cuda"
        path.write_text(json.dumps(content))
    assert read_records(results).find(jobs[0]) is not None


def test_a_record_has_the_metrics_that_are_read_from_events(recorded) -> None:
    _, jobs, results = recorded
    steps = metric("mean_steps").read(FinishedRun.read(jobs[0].folder))
    assert steps is not None
    assert read_records(results).find(jobs[0]).measured["mean_steps"] == steps


@pytest.mark.slow
def test_a_study_that_was_killed_goes_on_from_its_records_in_a_fresh_clone(tmp_path: Path) -> None:
    options = ["--scale", "tiny", "--methods", "special,fedavg,fedprox", "--seeds", "25", "--jobs", "1", "--record"]
    command = [sys.executable, "-m", "fedspecial.cli.main", "study", "main", *options]

    def arguments(name: str) -> list[str]:
        return [*command, "--out", str(tmp_path / name / "studies"), "--results", str(tmp_path / name / "results")]

    process = subprocess.Popen(arguments("first"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    records = tmp_path / "first" / "results" / "runs"
    try:
        while not list(records.glob("*.json")):
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    before = {path.name: path.read_bytes() for path in records.glob("*.json")}
    assert 1 <= len(before) < 5
    shutil.copytree(tmp_path / "first" / "results", tmp_path / "clone" / "results")
    again = subprocess.run(arguments("clone"), capture_output=True, text=True, timeout=480)
    assert again.returncode == 0, again.stderr
    assert f"{len(before)} runs have a record" in again.stdout
    after = {path.name: path.read_bytes() for path in (tmp_path / "clone" / "results" / "runs").iterdir()}
    assert len(after) == 5, "FedAvg and FedProx with both server learning rates, and SPECIAL"
    assert before.items() <= after.items()
    made = {f"{path.name}.json" for path in (tmp_path / "clone" / "studies" / "runs").iterdir()}
    assert made == set(after) - set(before)
