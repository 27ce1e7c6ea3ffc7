"""What the wheel contains: the pages, and uPlot exactly as its authors published it."""

from __future__ import annotations

import hashlib
import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = Path(str(resources.files("fedspecial.report") / "web"))
PUBLISHED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_uplot_is_the_published_file(name: str) -> None:
    """npm package uplot, version 1.6.32."""
    digest = hashlib.sha256((WEB / name).read_bytes()).hexdigest()
    assert digest == PUBLISHED[name]
    assert f"| `{name}` | uplot 1.6.32, " in (WEB / "README.md").read_text()
    assert digest in (WEB / "README.md").read_text()


def test_uplot_says_its_version() -> None:
    assert "(v1.6.32)" in (WEB / "uPlot.iife.min.js").read_text()[:500]


def test_every_file_that_a_page_asks_for_exists() -> None:
    static = Path(str(resources.files("fedspecial.ui") / "static"))
    have = {path.name for folder in (static, WEB) for path in folder.iterdir()}
    page = (static / "index.html").read_text()
    wanted = set(re.findall(r"static/([\w.]+)", page))
    for path in (*static.glob("*.js"), *(WEB / name for name in ("chart.js", "heatmap.js", "dom.js"))):
        wanted |= set(re.findall(r'from "\./([\w.]+)"', path.read_text()))
    assert len(wanted) > 12
    assert wanted <= have


def test_the_wheel_includes_everything_in_the_package() -> None:
    """Hatchling takes all files of a package that version control does not ignore."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/fedspecial"]}
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert not {"*.js", "*.css", "*.html", "static", "static/", "web", "web/"} & set(ignored)
