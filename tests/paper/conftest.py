from __future__ import annotations

from pathlib import Path

import pytest

from fedspecial.paper.grid import StudyRequest
from paper.study_factories import write_studies

NAMES = ("main", "per-task", "worst-drop", "costs", "lambda", "location", "rounds", "epochs", "alpha", "lambda-c")


@pytest.fixture(scope="session")
def studies(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ten studies at scale cpu and two seeds; all runs are finished, except where data is missing."""
    out = tmp_path_factory.mktemp("studies")
    write_studies(out, finished_run, [StudyRequest(name, "cpu", (25, 225)) for name in NAMES])
    return out
