"""The fenced code blocks of a Markdown page, and how they are run.

- ``python`` and ``bash`` blocks of a page run in order, in one temporary folder; a ``bash`` block contains `fedspecial`
  commands.
- A block with ``title="name"`` is written to that file instead, for the blocks after it.
- ``<!-- not run: reason -->`` on the line before a block says that no test can run it.
- ``text`` blocks show output, folders or formulas and are not code.
- ``<!-- slow page -->`` moves the page to the slow tests.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)\s*(?P<language>[\w-]*)(?P<options>.*)$")
TITLE = re.compile(r'title="([^"]+)"')
NOT_RUN = re.compile(r"^\s*<!-- not run: \S.* -->\s*$")
SLOW = "<!-- slow page -->"


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    title: str | None
    text: str
    not_run: bool


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        start = FENCE.match(lines[number])
        if start is None:
            number += 1
            continue
        end = number + 1
        while end < len(lines) and lines[end].strip() != start["fence"]:
            end += 1
        body = [line[len(start["indent"]) :] for line in lines[number + 1 : end]]
        title = TITLE.search(start["options"])
        not_run = number > 0 and NOT_RUN.match(lines[number - 1]) is not None
        yield Block(number + 1, start["language"], title and title[1], "\n".join(body) + "\n", not_run)
        number = end + 1


def run(block: Block, namespace: dict[str, Any], page: Path) -> None:
    """Run a block in the current folder; `namespace` is shared by the Python blocks of a page."""
    if block.title is not None:
        Path(block.title).parent.mkdir(parents=True, exist_ok=True)
        Path(block.title).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        source = "\n" * block.line + block.text  # so that an error names the page's own line
        exec(compile(source, str(page), "exec"), namespace)
    else:
        for command in commands(block.text):
            _run_command(command)


def commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def _run_command(words: list[str]) -> None:
    from fedspecial.cli.main import main

    assert words[0] == "fedspecial", f"only fedspecial commands are run, not: {shlex.join(words)}"
    code: object = 0
    with mock.patch.object(sys, "argv", words):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    assert not code, f"{shlex.join(words)} ended with code {code}"
