"""A part of a page that is generated stands between two marks; the rest is written by hand."""

from __future__ import annotations


def replace_between(page: str, begin: str, end: str, content: str) -> str:
    """The page with this content between its marks. Without both marks it is a ValueError: nothing is guessed."""
    before, first, rest = page.partition(begin)
    _, second, after = rest.partition(end)
    if not (first and second):
        raise ValueError(f"the page has no marks {begin.strip()!r} and {end.strip()!r}")
    return f"{before}{begin}{content}{end}{after}"
