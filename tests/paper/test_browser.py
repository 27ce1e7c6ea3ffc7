"""The report in Chromium: no errors, no network requests, nothing cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import Browser, chromium

WIDTHS = (1280, 400)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(written: Path) -> Path:
    return written / "index.html"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_opens_without_errors_or_network_requests(browser: Browser, page: Path, width: int) -> None:
    browser.open(page.resolve().as_uri(), width)
    assert browser.evaluate("document.readyState") == "complete"
    assert browser.log("browser") == []
    requested = browser.requested_urls()
    assert page.resolve().as_uri() in requested
    assert {url.split(":")[0] for url in requested} <= {"file", "data"}
    assert [url for url in requested if url.startswith("file")] == [page.resolve().as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_table_has_rows_and_every_figure_is_visible(browser: Browser, page: Path, width: int) -> None:
    browser.open(page.resolve().as_uri(), width)
    rows = browser.evaluate("[...document.querySelectorAll('table')].map(t => t.tBodies[0].rows.length)")
    assert len(rows) > 20
    assert min(rows) > 0
    sizes = browser.evaluate(
        "[...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth, i.clientHeight])"
    )
    heat_maps = browser.evaluate("document.querySelectorAll('.heatmaps').length")
    assert heat_maps > 0
    assert len(sizes) + heat_maps >= 9
    for complete, natural, shown, height in sizes:
        assert complete
        assert min(natural, shown, height) > 100


@pytest.mark.parametrize("width", WIDTHS)
def test_no_element_is_wider_than_the_page(browser: Browser, page: Path, width: int) -> None:
    browser.open(page.resolve().as_uri(), width)
    assert browser.evaluate("window.innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    outside = browser.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') "
        f"&& e.getBoundingClientRect().right > {width} + 1).map(e => e.tagName + '.' + e.className)"
    )
    assert outside == []


@pytest.mark.parametrize("width", WIDTHS)
def test_text_is_large_enough_to_read(browser: Browser, page: Path, width: int) -> None:
    browser.open(page.resolve().as_uri(), width)
    sizes = browser.evaluate(
        "[...document.querySelectorAll('p, td, th, li, figcaption, summary')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 12
