"""The documentation site is complete, and opens in a browser that reaches no other host."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from browser import Browser, chromium

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
WIDTHS = (1280, 400)

pytestmark = pytest.mark.slow


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which the site was built as `make docs` does."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for name in ("docs", "src", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": "tools/docs"}
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def address(project: Path) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(project / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_the_site_has_no_broken_link_image_formula_or_foreign_request(project: Path) -> None:
    command = [sys.executable, "tools/docs/check_site.py"]
    checked = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("source", "text", "problem"),
    [
        ("index.md", "[x](no-such-page.md)", "page does not exist"),
        ("index.md", "[x](concepts/anchor.md#no-such-heading)", "anchor does not exist"),
        ("index.md", "![x](no-such-picture.png)", "leads nowhere"),
        ("index.md", "![x](https://example.org/picture.png)", "from another host"),
        ("stray.md", "# Stray", "not in the navigation"),
    ],
)
def test_a_mistake_fails_the_build(project: Path, tmp_path: Path, source: str, text: str, problem: str) -> None:
    folder = tmp_path / "project"
    shutil.copytree(project, folder, ignore=shutil.ignore_patterns("site", ".cache"))
    with (folder / "docs" / source).open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
    output = ""
    for command in (["-m", "zensical", "build", "--clean", "--strict"], ["tools/docs/check_site.py"]):
        environment = {**os.environ, "PYTHONPATH": "tools/docs"}
        done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
        output += done.stdout + done.stderr
        if done.returncode:
            break
    else:
        pytest.fail("neither the build nor the check found it")
    assert problem in output


def url_of(source: Path) -> str:
    """Where the page of a Markdown file is, relative to the site."""
    name = source.with_suffix("").as_posix()
    return "" if name == "index" else name.removesuffix("/index") + "/"


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_a_page_opens_without_errors_or_foreign_requests(browser: Browser, address: str, source: Path) -> None:
    for width in WIDTHS:
        browser.open(address + url_of(source), width)
        assert browser.log("browser") == []
        assert {url for url in browser.requested_urls() if not url.startswith((address, "data:", "blob:"))} == set()
        # Pictures below the fold are only loaded when they come into view.
        browser.evaluate("[...document.images].forEach(i => i.loading = 'eager')")
        assert browser.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)") == []
        formulas = "[...document.querySelectorAll('.md-content math')]"
        assert browser.evaluate(f"{formulas}.filter(m => !m.closest('details') && !m.clientWidth).length") == 0
        assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_the_links_of_a_page_can_be_followed(browser: Browser, address: str, source: Path) -> None:
    browser.open(address + url_of(source), WIDTHS[0])
    links = browser.evaluate("[...document.links].map(a => a.href.split('#')[0])")
    assert links
    for link in set(links):
        if link.startswith(address):
            with urllib.request.urlopen(link) as reply:
                assert reply.status == 200


def test_the_search_index_has_every_page(address: str, project: Path) -> None:
    index = (project / "site" / "search.json").read_text(encoding="utf-8")
    for source in SOURCES:
        assert f'"location":"{url_of(source)}"' in index
