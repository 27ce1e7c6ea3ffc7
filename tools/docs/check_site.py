"""Checks the built documentation site; `make docs` runs it after the build.

    python tools/docs/check_site.py [ROOT]

The generator in strict mode finds links to missing pages and headings. This script finds the rest: pages that the
navigation lacks or names without a file, images that do not exist, links that leave the site folder, formulas that were
not converted, and anything that a page would load from another host.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("source", "src"), ("iframe", "src"), ("object", "data")}
FOLLOWED = {("a", "href")}


class Page(HTMLParser):
    """What one page refers to, and the fragments that others can refer to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.loaded: list[str] = []
        self.followed: list[str] = []
        self.fragments: set[str] = set()
        self.formulas = self.unconverted = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        for name, value in attributes.items():
            if (tag, name) in LOADED:
                self.loaded.append(value)
            elif (tag, name) in FOLLOWED:
                self.followed.append(value)
            elif name in ("id", "name"):
                self.fragments.add(value)
        self.unconverted += attributes.get("class") == "arithmatex"
        self.formulas += tag == "math"


@cache
def page(path: Path) -> Page:
    return Page(path)


def navigation(entry: object) -> Iterator[str]:
    """All page names in the `nav` part of mkdocs.yml."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, list):
        for part in entry:
            yield from navigation(part)
    elif isinstance(entry, dict):
        yield from navigation(list(entry.values()))


def navigation_problems(root: Path) -> Iterator[str]:
    config = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))
    named = set(navigation(config["nav"]))
    present = {path.relative_to(root / "docs").as_posix() for path in (root / "docs").rglob("*.md")}
    yield from (f"mkdocs.yml: the navigation names {name}, which does not exist" for name in sorted(named - present))
    yield from (f"docs/{name}: the page is not in the navigation (mkdocs.yml)" for name in sorted(present - named))


def page_problems(path: Path, site: Path) -> Iterator[str]:
    found, name = page(path), path.relative_to(site)
    if found.unconverted != found.formulas:
        yield f"{name}: {found.unconverted - found.formulas} formulas were not converted to MathML"
    for link in found.loaded:
        if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc:
            yield f"{name}: loads {link} from another host"
    for link in [*found.loaded, *found.followed]:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if parts.path.startswith("/"):
            target = site / unquote(parts.path[1:])
        if target.is_dir():
            target /= "index.html"
        if not target.is_relative_to(site) or not target.exists():
            yield f"{name}: {link} leads nowhere"
        elif target.suffix == ".html" and not _has_fragment(target, unquote(parts.fragment)):
            yield f"{name}: {link}: there is no such heading"


def _has_fragment(target: Path, fragment: str) -> bool:
    # The theme's own controls begin with two underscores; its script makes their targets.
    return not fragment or fragment.startswith("__") or fragment in page(target).fragments


def problems(root: Path) -> list[str]:
    site = (root / "site").resolve()
    found = list(navigation_problems(root))
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":  # its links are absolute, for a site at the root of a host
            found += page_problems(path, site)
    return found


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    found = problems(root)
    for problem in found:
        print(problem, file=sys.stderr)
    pages = len(list((root / "site").rglob("*.html")))
    print(f"{pages} pages, {len(found)} problems")
    sys.exit(bool(found or not pages))


if __name__ == "__main__":
    main()
