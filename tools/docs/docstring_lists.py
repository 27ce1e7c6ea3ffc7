"""Griffe extension: lines such as ``name: what it is`` in a docstring become a list on the API page.

The docstrings of this project describe fields and arguments in that short form, which plain Markdown would join into
one paragraph.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ENTRY = re.compile(r"^(?P<names>\w+(?:, \w+)*):\s+(?P<text>\S.*)$")
SECTIONS = {
    "Args",
    "Arguments",
    "Returns",
    "Raises",
    "Examples",
    "Example",
    "Note",
    "Reference",
    "References",
    "Yields",
}


class DocstringLists(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    """Each paragraph that begins with an entry becomes a list; other paragraphs and code stay as they are."""
    return "\n\n".join(_paragraph(part) for part in text.split("\n\n"))


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    first = ENTRY.match(lines[0])
    entries = [line for line in lines if ENTRY.match(line)]
    if first is None or first["names"] in SECTIONS or not (len(entries) > 1 or lines[1:2]):
        return text
    result = []
    for line in lines:
        entry = ENTRY.match(line)
        if entry is not None:
            names = ", ".join(f"`{name}`" for name in entry["names"].split(", "))
            result.append(f"- {names}: {entry['text']}")
        else:
            result.append("  " + line.strip())
    return "\n".join(result)
