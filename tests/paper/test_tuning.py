"""The same search for every method: equal budgets, a written rule, and records that the studies read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedspecial import methods
from fedspecial.config import resolve
from fedspecial.errors import InputError
from fedspecial.paper.grid import SEEDS, StudyRequest, grid_points, job_of
from fedspecial.paper.registry import find
from fedspecial.paper.scales import SCALES
from fedspecial.paper.tuning import default_settings, grids, methods_on, points, search_of, searches
from fedspecial.paper.tuning_records import (
    TriedPoint,
    choose,
    finished_search,
    further_runs,
    path_of,
    read_tuning,
    recorded_settings,
    write_record,
)
from processes import Fork

RECORDS = Path(__file__).parents[2] / "results"
VERSIONS = {"fedspecial": "0"}


@pytest.mark.parametrize("method", methods.names())
def test_every_method_has_a_grid_with_the_learning_rate_and_the_same_number_of_points(method: str) -> None:
    tried = points(method, "digits-shift", "tiny")
    assert len(tried) == len({json.dumps(point) for point in tried}) == grids().points
    assert len({point["client_lr"] for point in tried}) >= 3
    own = set.union(*(set(point) for point in tried)) - {"client_lr"}
    assert len(own) <= 2
    for point in tried:
        resolve({**default_settings(method, "digits-shift", "tiny"), **point})


@pytest.mark.parametrize("benchmark", ["digit10", "pacs", "glue"])
def test_every_search_has_the_same_number_of_runs_on_held_out_data(benchmark: str, tmp_path: Path) -> None:
    for method in methods_on("cpu", benchmark):
        search = search_of("cpu", benchmark, method, tmp_path)
        runs = [*search.first_runs, *search.further_runs(search.finalists([0.5] * grids().points))]
        assert len({job.folder for job in runs}) == grids().points + grids().finalists * (len(grids().seeds) - 1)
        assert {job.settings["holdout"] for job in runs} == {grids().holdout}


def test_the_preset_of_a_benchmark_is_one_of_the_points_of_special() -> None:
    assert {"client_lr": 0.1, "lam": 0.25} in points("special", "digits-shift", "tiny")


def test_a_search_uses_neither_the_seeds_of_the_studies_nor_reserved_ones() -> None:
    assert not set(grids().seeds) & {*SEEDS, 26, 226, 2026, 7, 77}


def test_text_has_no_search_for_methods_that_need_images() -> None:
    assert "mfcl" not in methods_on("cpu", "glue")
    assert "special" in methods_on("cpu", "glue")


def test_the_best_mean_on_held_out_samples_is_chosen_and_equal_points_by_the_written_rule() -> None:
    def tried(**means: float) -> list[TriedPoint]:
        return [TriedPoint({"lam": float(x[1:]) / 10}, (mean, mean + 0.1), (0.0, 0.0)) for x, mean in means.items()]

    assert choose(tried(x1=0.5, x2=0.7, x3=0.6), {"lam": 0.1}) == {"lam": 0.2}
    assert choose(tried(x1=0.7, x2=0.7, x3=0.7), {"lam": 0.2}) == {"lam": 0.2}, "the preset's value"
    assert choose(tried(x1=0.7, x2=0.7, x3=0.6), {"lam": 0.3}) == {"lam": 0.1}, "the first of the grid"


def test_only_the_best_points_with_the_first_seed_are_run_with_all_and_one_of_them_is_chosen(tmp_path: Path) -> None:
    search = search_of("tiny", "digits-shift", "special", tmp_path)
    first = [0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.7, 0.1, 0.1]
    assert search.finalists(first) == [1, 3, 5], "of equal points, the first of the grid"
    second = {1: 0.1, 3: 0.5, 5: 0.2}
    acc = {search.jobs[at][0].folder: value for at, value in enumerate(first)}
    assert further_runs(search, lambda folder: None) is None
    assert further_runs(search, reader(acc)) == [search.jobs[at][1] for at in second]
    assert finished_search(search, reader(acc)) is None, "the second seed is missing"
    tried = finished_search(search, reader({**acc, **{search.jobs[at][1].folder: v for at, v in second.items()}}))
    assert tried is not None
    assert [len(point.acc) for point in tried] == [1, 2, 1, 2, 1, 2, 1, 1, 1]
    # Means of the finalists: 0.5, 0.65, 0.45; point 1 has the highest value with one seed.
    assert choose(tried, {}) == search.points[3]


def reader(acc: dict[Path, float]) -> Callable[[Path], Any]:
    return lambda folder: SimpleNamespace(acc=acc[folder], bwt=None) if folder in acc else None


def test_the_transposed_benchmark_takes_the_settings_of_the_upright_one(tmp_path: Path) -> None:
    search = search_of("cpu", "digit10", "special", tmp_path)
    write_record(tmp_path, search, [TriedPoint(p, (0.5, 0.5), (None, None)) for p in search.points], VERSIONS)
    tuning = read_tuning(tmp_path)
    assert tuning["cpu", "digit10-transposed"] == tuning["cpu", "digit10"]
    with pytest.raises(InputError, match="'digit10-transposed': not searched; it takes the settings of digit10"):
        searches("cpu", ["digit10-transposed"], None, tmp_path, None)


def recorded(folder: Path, method: str = "special", best: int = 4) -> None:
    search = search_of("tiny", "digits-shift", method, folder)
    tried = [TriedPoint(p, (0.5 + 0.1 * (i == best),) * 2, (-0.1, None)) for i, p in enumerate(search.points)]
    write_record(folder, search, tried, VERSIONS)


def test_a_study_takes_the_settings_of_a_method_from_its_record(tmp_path: Path) -> None:
    recorded(tmp_path, "special", best=0)
    recorded(tmp_path, "fedprox", best=8)
    tuning = read_tuning(tmp_path)
    study = find("main")
    jobs = {
        point.row.key: job_of(study, point, "tiny", 25, tmp_path, tuning)
        for point in grid_points(study, StudyRequest("main", "tiny"))
    }
    assert (jobs["special"].settings["client_lr"], jobs["special"].settings["lam"]) == (0.03, 0.05)
    assert (jobs["fedprox"].settings["client_lr"], jobs["fedprox"].settings["mu_prox"]) == (0.3, 1.0)
    assert jobs["fedavg"].settings["client_lr"] == 0.1, "no record: the preset"
    assert "holdout" not in jobs["special"].settings or jobs["special"].settings["holdout"] == 0


def test_a_record_has_every_point_and_is_complete_or_not_written(tmp_path: Path) -> None:
    search = search_of("tiny", "digits-shift", "special", tmp_path)
    assert finished_search(search, lambda folder: None) is None
    recorded(tmp_path)
    content = json.loads(path_of(tmp_path, "tiny", "digits-shift").read_text())
    found = content["methods"]["special"]
    assert [point["settings"] for point in found["points"]] == list(search.points)
    assert found["chosen"] == search.points[4]
    assert found["seeds"] == list(grids().seeds)
    assert all(len(point["acc"]) == len(found["seeds"]) for point in found["points"])
    assert content["rule"].startswith("highest mean ACC")


def test_a_recorded_search_is_finished_in_every_clone(
    fork: Fork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path / "results", "special", best=4)
    options = ["--scale", "tiny", "--out", tmp_path / "out", "--results", tmp_path / "results"]
    both = fork("study", "tune-all", "digits-shift", "--methods", "special,fedavg", *options, "--plan")
    assert "digits-shift special: client_lr=0.1, lam=0.1 (recorded)" in both.stdout
    assert "12 runs: fedavg 12" in both.stdout
    before = path_of(tmp_path / "results", "tiny", "digits-shift").read_bytes()
    again = fork("study", "tune-all", "digits-shift", "--methods", "special", *options)
    assert again.code == 0, again.stderr
    assert path_of(tmp_path / "results", "tiny", "digits-shift").read_bytes() == before
    assert not (tmp_path / "out").exists(), "nothing was run"


def test_a_record_of_another_grid_is_searched_again(tmp_path: Path) -> None:
    recorded(tmp_path, "special", best=4)
    search = search_of("tiny", "digits-shift", "special", tmp_path)
    assert recorded_settings(tmp_path, search) == search.points[4]
    other = replace(search, points=(*search.points[:-1], {"client_lr": 9.0, "lam": 9.0}))
    assert recorded_settings(tmp_path, other) is None
    assert recorded_settings(tmp_path, replace(search, method="fedavg")) is None


def test_a_record_of_another_size_of_the_benchmark_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path)
    larger = replace(SCALES["tiny"]["digits-shift"], settings={**SCALES["tiny"]["digits-shift"].settings, "rounds": 5})
    monkeypatch.setitem(SCALES["tiny"], "digits-shift", larger)
    with pytest.raises(InputError, match=r"digits-shift.json: the search was run with other settings"):
        read_tuning(tmp_path)


WITHOUT_POINTS = {"scale": "tiny", "benchmark": "digits-shift", "settings": {}, "methods": {"special": {"chosen": {}}}}


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{}", '{"scale": "tiny", "benchmark": "digits-shift", "settings": 3}', json.dumps(WITHOUT_POINTS)],
)
def test_a_damaged_record_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    recorded(tmp_path)
    path_of(tmp_path, "tiny", "digits-shift").write_text(damage)
    with pytest.raises(InputError, match="damaged or edited"):
        read_tuning(tmp_path)


@pytest.mark.parametrize("path", sorted(RECORDS.glob("tuning/*/*.json")), ids=lambda path: path.stem)
def test_committed_records_are_those_of_the_current_grids(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    scale, benchmark = content["scale"], content["benchmark"]
    assert (path.parent.name, path.stem) == (scale, benchmark)
    read_tuning(RECORDS)
    for method, found in content["methods"].items():
        tried = [TriedPoint(p["settings"], tuple(p["acc"]), tuple(p["bwt"])) for p in found["points"]]
        assert [point.settings for point in tried] == list(points(method, benchmark, scale))
        assert found["seeds"] == list(grids().seeds)
        complete = [len(point.acc) == len(found["seeds"]) for point in tried]
        assert sum(complete) in {grids().finalists, grids().points}, "older searches ran all points with all seeds"
        assert found["chosen"] == choose(tried, default_settings(method, benchmark, scale))


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'digit-shift': no benchmark of the studies at scale tiny.*did you mean"):
        searches("tiny", ["digit-shift"], None, tmp_path, None)
    with pytest.raises(InputError, match="methods=speical: unknown method"):
        searches("tiny", ["digits-shift"], ["speical"], tmp_path, None)


def test_the_plan_lists_runs_hours_and_disk_and_runs_nothing(fork: Fork, tmp_path: Path) -> None:
    options = ["--scale", "tiny", "--out", tmp_path / "out", "--results", tmp_path / "results", "--plan"]
    outcome = fork("study", "tune-all", "digits-shift", "--methods", "special,fedavg", *options)
    assert outcome.code == 0, outcome.stderr
    assert "24 runs: fedavg 12, special 12" in outcome.stdout
    assert "0 finished, 24 left: about 0.0" in outcome.stdout
    assert "core hours, 24 MB of disk" in outcome.stdout
    studies = fork("study", "main", *options)
    assert "70 runs: " in studies.stdout
    assert "no search was recorded for fedavg" in studies.stderr
    assert list(tmp_path.iterdir()) == []


def test_tune_all_has_its_own_seeds(fork: Fork, tmp_path: Path) -> None:
    outcome = fork("study", "tune-all", "digits-shift", "--scale", "tiny", "--seeds", "25", "--out", tmp_path / "out")
    assert "seeds=25: not for tune-all" in outcome.stderr
