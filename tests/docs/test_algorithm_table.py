"""The table of Algorithm 1 names functions that exist and have the `# line n` comments."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "concepts" / "algorithm.md"
ROW = re.compile(r"^\| (?P<lines>[\d–]+) \| .* \| `(?P<file>[\w/]+\.py)` \| `(?P<function>[\w.]+)` \|$", re.MULTILINE)
COMMENT = re.compile(r"# lines? (?P<first>\d+)(?: (?P<word>to|and) (?P<last>\d+))?")
END_OF_LOOP = {11, 14, 19, 21}


def numbers(first: str, last: str | None) -> set[int]:
    return set(range(int(first), int(last or first) + 1))


ROWS = [
    (numbers(match["lines"].split("–")[0], match["lines"].split("–")[-1]), match["file"], match["function"])
    for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))
]


def source_of(file: str, function: str) -> str:
    """The lines of a function or method."""
    text = (ROOT / "src" / "fedspecial" / file).read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for name in function.split("."):
        node = next(child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == name)
    assert isinstance(node, ast.FunctionDef)
    return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])


def test_every_line_of_the_algorithm_is_in_the_table() -> None:
    listed = set().union(*(lines for lines, _, _ in ROWS))
    assert listed | END_OF_LOOP == set(range(1, 22))


@pytest.mark.parametrize(("lines", "file", "function"), ROWS)
def test_the_function_of_a_line_exists_and_marks_it(lines: set[int], file: str, function: str) -> None:
    marked = set().union(*(numbers(m["first"], m["last"]) for m in COMMENT.finditer(source_of(file, function))))
    assert lines <= marked
