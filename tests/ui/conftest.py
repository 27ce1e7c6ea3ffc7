"""A server over a folder of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ui_site import Site, serving


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """An empty folder, to be filled by the test."""
    (tmp_path / "runs").mkdir()
    with serving(tmp_path / "runs") as found:
        yield found
