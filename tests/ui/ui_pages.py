"""Opening a page of the server in Chromium, and reading it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from browser import Browser


def wait_for(browser: Browser, script: str, wanted: Any = True, seconds: float = 60) -> None:
    """Wait until the script returns what is wanted."""
    deadline = time.monotonic() + seconds
    while (found := browser.evaluate(script)) != wanted:
        assert time.monotonic() < deadline, f"{script}: {found!r}, not {wanted!r}"
        time.sleep(0.05)


@contextmanager
def page(browser: Browser, address: str, view: str = "", *runs: str, width: int = 1280) -> Iterator[None]:
    """The page is open; afterwards there was no error in the console and no request to another host."""
    browser.log("browser")
    browser.requested_urls()
    browser.open("about:blank", width)
    browser.open(f"{address}#/{view}?{urlencode([('run', run) for run in runs])}", width)
    wait_for(browser, "document.querySelector('#connection').textContent", "live")
    yield
    assert browser.log("browser") == []
    requested = {url for url in browser.requested_urls() if not url.startswith(("data:", "about:"))}
    assert requested
    assert all(url.startswith(address) for url in requested)


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.evaluate(f"[...document.querySelectorAll({selector!r})].map(e => e.textContent.trim())")
    return found


def press(browser: Browser, selector: str) -> None:
    browser.evaluate(f"document.querySelector({selector!r}).click()")
