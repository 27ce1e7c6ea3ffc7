"""The table of settings says for each method and benchmark whether a search chose them, and what it chose."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedspecial.paper.grid import StudyRequest, StudyResults, Tuning, collect
from fedspecial.paper.metrics import FinishedRun
from fedspecial.paper.registry import find
from fedspecial.paper.settings_table import NO_RUN, NOTHING_RECORDED, PRESET, as_html, as_markdown, settings_table

FOUND = {"special": {"client_lr": 0.05, "lam": 0.1}, "fedavg": {"client_lr": 0.1}}
TUNING: Tuning = {("cpu", "digit10"): FOUND, ("cpu", "digit10-transposed"): FOUND}
RUNS = {"digit10": ("special", "fedavg", "fedprox"), "digit10-transposed": ("special", "fedavg"), "pacs": ("special",)}


@pytest.fixture(scope="module")
def sample(finished_run: Path) -> FinishedRun:
    found = FinishedRun.read(finished_run)
    assert found is not None
    return found


def results_of(sample: FinishedRun, tuning: Tuning) -> StudyResults:
    request = StudyRequest("main", "cpu", (25,), tuple(RUNS))

    def read(job):
        benchmark = job.folder.name.partition(f"-{job.method}-{job.seed}-")[0]
        return sample if job.method in RUNS[benchmark] else None

    return collect(find("main"), request, Path(), read, str, {}, tuning)


def test_a_cell_has_what_the_search_chose_or_says_preset(sample: FinishedRun) -> None:
    table = settings_table(results_of(sample, TUNING))
    assert table is not None
    assert table.heads == (
        "method",
        "Digit-10",
        "Digit-10 with the third domain transposed (those of Digit-10)",
        "PACS",
    )
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows == {
        "special": ("client_lr 0.05, lam 0.1", "client_lr 0.05, lam 0.1", PRESET),
        "fedavg": ("client_lr 0.1", "client_lr 0.1", NO_RUN),
        "fedprox": (PRESET, NO_RUN, NO_RUN),
    }
    assert "| special | client_lr 0.05, lam 0.1 | client_lr 0.05, lam 0.1 | preset |" in as_markdown(table)
    assert "<td>special</td><td>client_lr 0.05, lam 0.1</td>" in as_html(table)


def test_without_any_search_the_table_says_so(sample: FinishedRun) -> None:
    table = settings_table(results_of(sample, {}))
    assert table is not None
    assert table.note == NOTHING_RECORDED
    assert {cell for row in table.rows for cell in row[1:]} == {PRESET, NO_RUN}


def test_there_is_no_table_without_runs() -> None:
    request = StudyRequest("main", "cpu", (25,), ("digit10",))
    assert settings_table(collect(find("main"), request, Path(), lambda job: None, str, {}, {})) is None
