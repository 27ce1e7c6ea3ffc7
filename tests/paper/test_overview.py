"""The table of the README is made from the records, and says what must be known beside the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedspecial.paper.documentation import documents
from fedspecial.paper.grid import StudyRequest, StudyResults, collect
from fedspecial.paper.marks import replace_between
from fedspecial.paper.metrics import FinishedRun
from fedspecial.paper.overview import overview, with_overview
from fedspecial.paper.registry import find
from fedspecial.report.warnings import DIVERGED
from fedspecial.runs.jobs import Job

ROOT = Path(__file__).parents[2]
ACC = {"fedavg": 0.5, "special": 0.75, "fedcil": 0.25, "joint": 1.0}
"""Per method with seed 225; with seed 25, 2 points less: mean 1 point less, standard deviation √2 points."""


def results_of(sample: FinishedRun, diverged: tuple[str, int] | None = None) -> StudyResults:
    """`main` with two seeds of four methods on Digit-10, and nothing on PACS."""

    def read(job: Job) -> FinishedRun | None:
        seed = int(job.settings["seed"])
        if job.method not in ACC or job.settings["benchmark"] != "digit10" or job.settings.get("server_lr") == 1:
            return None
        warnings = [f"{DIVERGED}: …"] if (job.method, seed) == diverged else []
        acc = ACC[job.method] - (0.02 if seed == 25 else 0.0)
        bwt = None if job.method == "joint" else -0.125 if job.method == "special" else 0.0
        return replace(sample, result=replace(sample.result, acc=acc, bwt=bwt, warnings=warnings))

    request = StudyRequest("main", "cpu", (25, 225), ("digit10", "pacs"))
    return collect(find("main"), request, Path(), read, lambda name: name, {}, {})


@pytest.fixture(scope="module")
def sample(finished_run: Path) -> FinishedRun:
    found = FinishedRun.read(finished_run)
    assert found is not None
    return found


def rows_of(table: str) -> dict[str, str]:
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {cells[0]: " | ".join(cells[1:]) for cells in lines}


def test_the_readme_shows_the_table_of_the_records() -> None:
    """If this fails: make reference."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_overview(readme, documents(ROOT / "results").overview) == readme


def test_cells_have_mean_and_deviation_of_acc_and_the_mean_of_bwt(sample: FinishedRun) -> None:
    rows = rows_of(overview(results_of(sample)))
    assert rows["method"] == "Digit-10", "a benchmark without a run has no column"
    assert rows["FedAvg"] == "49.0 ±\u202f1.4 / 0.0"
    assert rows["FedProx"] == "–"
    assert "FedAvg, γ_G = 1" not in rows


def test_the_best_acc_is_bold_and_an_upper_bound_does_not_count(sample: FinishedRun) -> None:
    rows = rows_of(overview(results_of(sample)))
    assert rows["SPECIAL"] == "**74.0 ±\u202f1.4** / −12.5"
    assert rows["joint training (upper bound)"] == "99.0 ±\u202f1.4"


def test_a_method_that_is_cut_down_and_a_training_that_diverged_are_marked(sample: FinishedRun) -> None:
    table = overview(results_of(sample, diverged=("joint", 225)))
    assert "| FedCIL¹ |" in table
    assert rows_of(table)["joint training (upper bound)"] == "99.0 ±\u202f1.4²"
    assert "¹ Cut down for a CPU. ² The training diverged with seed 225." in table


def test_a_page_without_both_marks_is_refused() -> None:
    assert replace_between("a<b>old<c>d", "<b>", "<c>", "new") == "a<b>new<c>d"
    for page in ("a<c>d", "a<b>d", "a<c>old<b>d"):
        with pytest.raises(ValueError, match="no marks"):
            replace_between(page, "<b>", "<c>", "new")
