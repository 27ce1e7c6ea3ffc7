"""What was done for each method is said beside its numbers, computed from settings and runs."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from fedspecial import methods
from fedspecial.paper.common import FULL
from fedspecial.paper.grid import GridPoint, StudyRequest, StudyResults, Tuning, collect, grid_points, merged_settings
from fedspecial.paper.metrics import FinishedRun
from fedspecial.paper.registry import find
from fedspecial.paper.row_notes import note_of
from fedspecial.paper.spec import Row
from fedspecial.paper.tables import Notes, latex, markdown, tables_of
from fedspecial.report.warnings import DIVERGED

CUT_DOWN = sorted(FULL)


@pytest.fixture(scope="module")
def sample(finished_run: Path) -> FinishedRun:
    found = FinishedRun.read(finished_run)
    assert found is not None
    return replace(found, recorded_curve=(), measured={"samples_per_client": 800.0, "mean_steps": 10.0})


def results_of(sample: FinishedRun, scale: str = "cpu", tuning: Tuning | None = None) -> StudyResults:
    """`main` on Digit-10 with one run per row; the clients of SR-FDIL take half as many steps again."""

    def read(job):
        steps = 15.0 if job.method == "srfdil" else 10.0
        return replace(sample, measured={**sample.measured, "mean_steps": steps})

    request = StudyRequest("main", scale, (25,), ("digit10",))
    return collect(find("main"), request, Path(), read, lambda name: name, {}, tuning or {})


def point_of(results: StudyResults, row: Row) -> GridPoint:
    return next(point for point in results.runs if point.row == row)


@pytest.mark.parametrize("method", CUT_DOWN)
def test_the_full_rows_have_the_defaults_of_the_methods(method: str) -> None:
    defaults = {field.name: field.default for field in fields(methods.find(method))}
    assert all(defaults[key] == value for key, value in FULL[method].settings)


@pytest.mark.parametrize("method", CUT_DOWN)
def test_every_reduced_setting_is_named_with_its_default(sample: FinishedRun, method: str) -> None:
    results = results_of(sample)
    point = point_of(results, Row(method))
    note = note_of(results, point)
    used = merged_settings(results.study, point, "cpu", {})
    for key, default in FULL[method].settings:
        shown = [f"{value:g}" if isinstance(value, (int, float)) else value for value in (used[key], default)]
        assert f"`{key}` {shown[0]} (default {shown[1]})" in note


def test_methods_that_are_not_cut_down_have_no_note(sample: FinishedRun) -> None:
    results = results_of(sample)
    assert {point.row.method for point in results.runs if note_of(results, point)} == {*CUT_DOWN, "srfdil"}
    paper = results_of(sample, "paper")
    assert {point.row.method for point in paper.runs if note_of(paper, point)} == {"srfdil"}
    study = find("full-rivals")
    full = collect(study, StudyRequest(study.name, "cpu"), Path(), lambda job: sample, str, {}, {})
    assert [note_of(full, point) for point in full.runs if point.row in FULL.values()] == [""] * len(FULL)


def test_a_run_that_diverged_is_named_beside_its_numbers(sample: FinishedRun) -> None:
    warned = replace(sample, result=replace(sample.result, warnings=[f"{DIVERGED}: try a smaller client_lr"]))
    study, request = find("main"), StudyRequest("main", "cpu", (25, 225), ("digit10",))

    def read(job):
        return warned if job.method in ("joint", "srfdil") and job.seed == 225 else sample

    results = collect(study, request, Path(), read, str, {}, {})
    assert note_of(results, point_of(results, Row("joint"))) == "The training diverged with seed 225."
    assert note_of(results, point_of(results, Row("srfdil"))).endswith(" FedAvg. The training diverged with seed 225.")
    assert note_of(results, point_of(results, Row("fedavg"))) == ""


def test_sr_fdil_shows_the_share_of_its_cache_and_its_local_steps(sample: FinishedRun) -> None:
    results = results_of(sample)
    assert note_of(results, point_of(results, Row("srfdil"))) == (
        "Our reading of SR-FDIL: a client stores 100 samples, 12.5 % of the 800 that it sees on average, "
        "and takes 1.50 times as many local steps as with FedAvg."
    )
    small = next(point for point in results.runs if point.row.method == "srfdil" and point.row.settings)
    assert "stores 18 samples, 2.2 % of the 800" in note_of(results, small)


def test_a_row_refers_to_its_note_under_the_table(sample: FinishedRun) -> None:
    (table,) = tables_of(results_of(sample))
    marked = {row.label: row.mark for row in table.rows if row.mark}
    assert len(set(marked.values())) == len(table.notes) == 5
    lines = markdown(table).splitlines()
    assert any(line.startswith(f"| FedCIL{marked['FedCIL']} | ") for line in lines)
    assert f"{marked['FedCIL']} Cut down for a CPU: " in lines[-9]
    assert [row.mark for row in table.part(published=True).rows if row.mark] == []
    assert r"\par{\footnotesize $^1$ Cut down for a CPU: server\_iterations 5 (default 50)" in latex(table)


def test_every_swept_point_of_a_study_can_have_notes() -> None:
    for name in ("cache", "participation"):
        study = find(name)
        request = StudyRequest(name, "cpu")
        results = collect(study, request, Path(), lambda job: None, str, {}, {})
        assert [note_of(results, point) for point in grid_points(study, request)] == [""] * len(results.runs)


def test_a_table_can_have_more_notes_than_digits() -> None:
    notes = Notes()
    marks = [notes.mark(f"note {number}") for number in range(1, 13)]
    assert (marks[0], marks[8:]) == ("¹", ["⁹", "¹⁰", "¹¹", "¹²"])
    assert notes.mark("note 12") == "¹²"
    assert notes.lines[-1] == "¹² note 12"
