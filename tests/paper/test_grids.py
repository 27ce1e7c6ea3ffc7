"""A study is data: its runs are a function of its entry, each is run once, whichever study asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedspecial import methods
from fedspecial.errors import InputError
from fedspecial.paper.grid import Ask, job_of, points, settings_of
from fedspecial.paper.published import printed
from fedspecial.paper.registry import STUDIES, find
from fedspecial.paper.requests import read_asked, remember
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
    return {job.folder for job in planned_jobs([Ask(name, scale, seeds) for name in names], OUT).jobs}


def test_every_table_and_figure_of_the_paper_is_a_study() -> None:
    assert set(PAPER) <= {study.name for study in STUDIES}


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_the_words_of_every_point_are_those_of_a_run(study) -> None:
    for scale in study.scales:
        assert set(study.benchmarks[scale]) <= set(SCALES[scale])
        for point in points(study, Ask(study.name, scale)):
            if point.row.method in methods.names():
                settings = job_of(study, point, scale, 25, OUT).settings
                assert settings["method"] == point.row.method
                assert study.sweep is None or settings[study.sweep.word] == point.x


@pytest.mark.parametrize("name", ["per-task", "worst-drop", "costs"])
def test_what_is_read_from_the_main_runs_needs_no_runs_of_its_own(name: str) -> None:
    assert folders(name) <= folders("main")


def test_where_the_anchor_is_needs_no_runs_but_those_of_main_and_of_the_clients_lambda() -> None:
    assert folders("location") <= folders("main", "lambda-c")


@pytest.mark.parametrize("name", ["lambda", "rounds", "epochs", "alpha"])
@pytest.mark.parametrize("scale", ["paper", "cpu"])
def test_the_usual_value_of_a_sweep_is_the_main_run(name: str, scale: str) -> None:
    shared = folders(name, scale=scale) & folders("main", scale=scale)
    methods_shared = {"special"} if name == "lambda" else {"special", "fedavg"}
    assert {folder.name.rsplit("-", 1)[0] for folder in shared} == {f"digit10-{method}-25" for method in methods_shared}


def test_words_found_at_a_scale_hold_for_their_method_and_yield_to_a_rows_own() -> None:
    study, tuned = find("location"), SCALES["cpu"]["digit10"].tuned
    lams = {
        point.row.key: settings_of(study, point, "cpu").get("lam") for point in points(study, Ask("location", "cpu"))
    }
    assert lams["special"] == tuned["special"]["lam"]
    assert lams["special-c"] == tuned["special-c"]["lam"]
    assert lams["special-c lam=1.0"] == 1.0


def test_a_run_asked_for_twice_is_planned_once() -> None:
    jobs = planned_jobs([Ask("main", "cpu"), Ask("costs", "cpu"), Ask("main", "cpu")], OUT).jobs
    assert len({job.folder for job in jobs}) == len(jobs)


def test_the_folder_depends_on_the_words_and_not_on_where_run_and_data_lie() -> None:
    study = find("main")
    point = points(study, Ask("main", "tiny"))[0]
    job = job_of(study, point, "tiny", 25, OUT)
    assert settings_key(job.settings) == settings_key({**job.settings, "out": "elsewhere", "data": "there"})
    assert settings_key(job.settings) != settings_key({**job.settings, "seed": 26})
    assert settings_key(job.settings) != settings_key({**job.settings, "client_lr": 0.01})
    assert job.folder == job_of(study, point, "tiny", 25, OUT, "there").folder


def test_seeds_come_in_turn_so_that_a_stopped_study_is_of_use() -> None:
    seeds = [
        job.seed for job in planned_jobs([Ask("main", "cpu", (225, 25)), Ask("rounds", "cpu", (225, 25))], OUT).jobs
    ]
    assert seeds == sorted(seeds, reverse=True)


def test_what_is_not_on_disk_is_left_out_and_said() -> None:
    plan = planned_jobs([Ask("main", "cpu")], OUT)
    assert {job.folder.name.split("-")[0] for job in plan.jobs} == {"digit10", "pacs"}
    assert any(line.startswith("vlcs") for line in plan.left_out)
    assert any(line.startswith("dn4il") for line in plan.left_out)


def test_both_server_rates_of_fedavg_and_fedprox_are_in_main() -> None:
    for method in ("fedavg", "fedprox"):
        rates = {
            job.settings["server_lr"] for job in planned_jobs([Ask("main", "cpu")], OUT).jobs if job.method == method
        }
        assert rates == {"1/i", 1}


def test_asked_again_a_study_grows(tmp_path: Path) -> None:
    remember(tmp_path, [Ask("main", "tiny", (25,), None, ("special",)), Ask("rounds", "tiny", (25,))])
    remember(tmp_path, [Ask("main", "tiny", (26,), None, ("fedavg",))])
    assert read_asked(tmp_path) == [
        Ask("main", "tiny", (25, 26), None, ("special", "fedavg")),
        Ask("rounds", "tiny", (25,)),
    ]


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (Ask("main", "cpu", benchmarks=("glue",)), "benchmarks=glue"),
        (Ask("main", "cpu", methods=("fedavgg",)), "methods=fedavgg.*did you mean 'fedavg'"),
        (Ask("language", "tiny"), "scale=tiny"),
        (Ask("mian", "cpu"), "study 'mian'.*did you mean 'main'"),
    ],
)
def test_what_is_not_there_is_refused_by_name(ask: Ask, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        planned_jobs([ask], OUT)


@pytest.mark.parametrize("benchmark", ["digit10", "vlcs", "pacs", "dn4il"])
def test_in_print_special_has_the_highest_accuracy(benchmark: str) -> None:
    cells = {row: printed("main", benchmark, None, row, "acc") for row in LABELS}
    assert max(cells, key=lambda row: cells[row].mean) == "special"
    for n in (2, 6, 8):
        cells = {row: printed("participation", benchmark, n, row, "acc") for row in LABELS}
        assert max(cells, key=lambda row: cells[row].mean) == "special"


def test_what_was_not_printed_is_none() -> None:
    assert printed("main", "digit10", None, "fedavg server_lr=1", "acc") is None
    assert printed("rounds", "digit10", 5, "special", "acc") is None
    assert printed("lambda-c", "digit10", 0.2, "special-c", "bwt").mean == -8.81
