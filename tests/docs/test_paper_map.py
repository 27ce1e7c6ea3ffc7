"""The page that links the paper's sections to the code names files and functions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "algorithm.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.split("## Algorithm 1\n")[0].splitlines() if re.match(r"\| \d", line)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:40])
def test_the_files_and_functions_of_a_section_exist(row: str) -> None:
    names = re.findall(r"`([^`]+)`", row.rsplit("|", 2)[1])
    files = [ROOT / "src" / "fedspecial" / name for name in names if "/" in name]
    assert files
    assert [file for file in files if not file.exists()] == []
    code = "".join(file.read_text(encoding="utf-8") for file in files if file.suffix == ".py")
    assert [name for name in names if "/" not in name and f"def {name}(" not in code] == []
