from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder for one test."""
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def real() -> Path:
    """The folder with the real data; the test is skipped on a machine without it."""
    folder = os.environ.get("FEDSPECIAL_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("FEDSPECIAL_DATA is not set")
    return Path(folder)


@pytest.fixture(scope="session")
def real_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests of the real data, so that they decode it once."""
    return tmp_path_factory.mktemp("real-cache")
