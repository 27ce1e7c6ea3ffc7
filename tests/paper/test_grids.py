"""A study is data: it determines its runs, and studies share runs with equal settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedspecial import methods
from fedspecial.errors import InputError
from fedspecial.paper.grid import StudyRequest, grid_points, job_of, settings_of
from fedspecial.paper.published import published_value
from fedspecial.paper.registry import STUDIES, find
from fedspecial.paper.requests import add_requests, read_requests
from fedspecial.paper.scales import SCALES
from fedspecial.paper.spec import LABELS
from fedspecial.runs.jobs import settings_key
from paper.study_factories import planned_jobs

OUT = Path("studies")
PAPER = (
    *("main", "participation", "per-task", "worst-drop", "costs", "lambda", "location", "rounds", "epochs", "alpha"),
    *("lambda-c", "language", "class-incremental", "theory"),
)


def folders(*names: str, scale: str = "cpu", seeds: tuple[int, ...] = (25,)) -> set[Path]:
    return {job.folder for job in planned_jobs([StudyRequest(name, scale, seeds) for name in names], OUT).jobs}


def test_every_table_and_figure_of_the_paper_is_a_study() -> None:
    assert set(PAPER) <= {study.name for study in STUDIES}


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_the_settings_of_every_grid_point_are_valid(study) -> None:
    for scale in study.scales:
        assert set(study.benchmarks[scale]) <= set(SCALES[scale])
        for point in grid_points(study, StudyRequest(study.name, scale)):
            if point.row.method in methods.names():
                settings = job_of(study, point, scale, 25, OUT, {}).settings
                assert settings["method"] == point.row.method
                assert study.sweep is None or settings[study.sweep.setting] == point.x


@pytest.mark.parametrize("name", ["per-task", "worst-drop", "costs"])
def test_studies_that_read_the_runs_of_main_need_no_runs_of_their_own(name: str) -> None:
    assert folders(name) <= folders("main")


def test_location_needs_only_the_runs_of_main_and_lambda_c() -> None:
    assert folders("location") <= folders("main", "lambda-c")


@pytest.mark.parametrize("name", ["lambda", "rounds", "epochs", "alpha"])
@pytest.mark.parametrize("scale", ["paper", "cpu"])
def test_the_default_value_of_a_sweep_is_a_run_of_main(name: str, scale: str) -> None:
    shared = folders(name, scale=scale) & folders("main", scale=scale)
    methods_shared = {"special"} if name == "lambda" else {"special", "fedavg"}
    assert {folder.name.rsplit("-", 1)[0] for folder in shared} == {f"digit10-{method}-25" for method in methods_shared}


def test_tuned_settings_apply_to_their_method_unless_the_row_sets_them() -> None:
    study, tuned = find("location"), {"special": {"lam": 0.05}, "special-c": {"lam": 0.3, "client_lr": 0.02}}
    found = {
        point.row.key: settings_of(study, point, "cpu", {("cpu", "digit10"): tuned})
        for point in grid_points(study, StudyRequest("location", "cpu"))
    }
    assert found["special"]["lam"] == 0.05
    assert "client_lr" not in found["special"]
    assert (found["special-c"]["lam"], found["special-c"]["client_lr"]) == (0.3, 0.02)
    assert (found["special-c lam=1.0"]["lam"], found["special-c lam=1.0"]["client_lr"]) == (1.0, 0.02)


def test_a_run_requested_twice_is_planned_once() -> None:
    jobs = planned_jobs(
        [StudyRequest("main", "cpu"), StudyRequest("costs", "cpu"), StudyRequest("main", "cpu")], OUT
    ).jobs
    assert len({job.folder for job in jobs}) == len(jobs)


def test_the_run_directory_depends_on_the_settings_but_not_on_the_location_of_run_and_data() -> None:
    study = find("main")
    point = grid_points(study, StudyRequest("main", "tiny"))[0]
    job = job_of(study, point, "tiny", 25, OUT, {})
    assert settings_key(job.settings) == settings_key({**job.settings, "out": "elsewhere", "data": "there"})
    assert settings_key(job.settings) != settings_key({**job.settings, "seed": 26})
    assert settings_key(job.settings) != settings_key({**job.settings, "client_lr": 0.01})
    assert job.folder == job_of(study, point, "tiny", 25, OUT, {}, "there").folder


def test_runs_are_ordered_by_seed() -> None:
    seeds = [
        job.seed
        for job in planned_jobs(
            [StudyRequest("main", "cpu", (225, 25)), StudyRequest("rounds", "cpu", (225, 25))], OUT
        ).jobs
    ]
    assert seeds == sorted(seeds, reverse=True)


def test_benchmarks_without_data_are_skipped_and_reported() -> None:
    plan = planned_jobs([StudyRequest("main", "cpu")], OUT)
    assert {job.folder.name.split("-")[0] for job in plan.jobs} == {"digit10", "pacs"}
    assert any(line.startswith("vlcs") for line in plan.skipped)
    assert any(line.startswith("dn4il") for line in plan.skipped)


def test_main_has_both_server_learning_rates_of_fedavg_and_fedprox() -> None:
    for method in ("fedavg", "fedprox"):
        rates = {
            job.settings["server_lr"]
            for job in planned_jobs([StudyRequest("main", "cpu")], OUT).jobs
            if job.method == method
        }
        assert rates == {"1/i", 1}


def test_requests_for_the_same_study_are_merged(tmp_path: Path) -> None:
    add_requests(
        tmp_path, [StudyRequest("main", "tiny", (25,), None, ("special",)), StudyRequest("rounds", "tiny", (25,))]
    )
    add_requests(tmp_path, [StudyRequest("main", "tiny", (26,), None, ("fedavg",))])
    assert read_requests(tmp_path) == [
        StudyRequest("main", "tiny", (25, 26), None, ("special", "fedavg")),
        StudyRequest("rounds", "tiny", (25,)),
    ]


@pytest.mark.parametrize(
    ("requested", "complaint"),
    [
        (StudyRequest("main", "cpu", benchmarks=("glue",)), "benchmarks=glue"),
        (StudyRequest("main", "cpu", methods=("fedavgg",)), "methods=fedavgg.*did you mean 'fedavg'"),
        (StudyRequest("language", "tiny"), "scale=tiny"),
        (StudyRequest("mian", "cpu"), "study 'mian'.*did you mean 'main'"),
    ],
)
def test_unknown_names_are_refused(requested: StudyRequest, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        planned_jobs([requested], OUT)


@pytest.mark.parametrize("benchmark", ["digit10", "vlcs", "pacs", "dn4il"])
def test_in_the_paper_special_has_the_highest_accuracy(benchmark: str) -> None:
    cells = {row: published_value("main", benchmark, None, row, "acc") for row in LABELS}
    assert max(cells, key=lambda row: cells[row].mean) == "special"
    for n in (2, 6, 8):
        cells = {row: published_value("participation", benchmark, n, row, "acc") for row in LABELS}
        assert max(cells, key=lambda row: cells[row].mean) == "special"


def test_unpublished_values_are_none() -> None:
    assert published_value("main", "digit10", None, "fedavg server_lr=1", "acc") is None
    assert published_value("rounds", "digit10", 5, "special", "acc") is None
    assert published_value("lambda-c", "digit10", 0.2, "special-c", "bwt").mean == -8.81
