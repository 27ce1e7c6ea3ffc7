from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fedspecial.paper.claims.base import BenchmarkResults
from fedspecial.paper.grid import StudyRequest, StudyResults
from fedspecial.paper.registry import find
from fedspecial.paper.report import write_report
from figures import drawn
from paper.study_factories import NO_RECORDS, write_studies

NAMES = ("main", "per-task", "worst-drop", "costs", "lambda", "location", "rounds", "epochs", "alpha", "lambda-c")
Values = Mapping[tuple[str, float | None], Mapping[int, float]]


@pytest.fixture(scope="session")
def studies(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ten studies at scale cpu and two seeds; all runs are finished, except where data is missing."""
    out = tmp_path_factory.mktemp("studies")
    write_studies(out, finished_run, [StudyRequest(name, "cpu", (25, 225)) for name in NAMES])
    return out


@pytest.fixture(scope="session")
def written(studies: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the studies with their report; no test may change it."""
    folder = tmp_path_factory.mktemp("report") / "studies"
    shutil.copytree(studies, folder)
    with drawn():
        write_report(folder, folder / "REPRODUCIBILITY.md", NO_RECORDS)
    return folder


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Values], BenchmarkResults]:
    """The results of a study with given metrics: (row, swept value) → value by seed."""

    def make(study: str, values: Values) -> BenchmarkResults:
        study_results = StudyResults(find(study), StudyRequest(study, "cpu"), {}, {}, {})
        monkeypatch.setattr(StudyResults, "values", lambda self, benchmark, row, x, key: dict(values.get((row, x), {})))
        return BenchmarkResults(study_results, "digit10")

    return make
