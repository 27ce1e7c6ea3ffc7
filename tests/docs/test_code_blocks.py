"""Every code block in the README and the docs runs as it stands, or says why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from code_blocks import PAGES, ROOT, SLOW, blocks, run


def _cases() -> list[Any]:
    cases = []
    for page in PAGES:
        if any(not block.not_run and block.language in ("python", "bash") for block in blocks(page)):
            slow = SLOW in page.read_text(encoding="utf-8")
            marks = [pytest.mark.slow] if slow else []
            cases.append(pytest.param(page, id=page.relative_to(ROOT).as_posix(), marks=marks))
    return cases


@pytest.mark.parametrize("page", _cases())
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("rendered")
def test_the_code_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("FEDSPECIAL_DATA", raising=False)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if not block.not_run and (block.title or block.language in ("python", "bash")):
            run(block, namespace, page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    unmarked = [
        f"{page.name}:{block.line}: a {block.language or 'block without a language'}"
        for block in blocks(page)
        if not (block.not_run or block.title or block.language in ("python", "bash", "text"))
    ]
    assert unmarked == [], "put `<!-- not run: reason -->` before it, name a file with title=, or use `text`"
