"""The report in Chromium: no errors, no network requests, nothing cut off."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedspecial.paper.report import write_report

pytestmark = pytest.mark.skipif(
    not (shutil.which("chromedriver") and shutil.which("chromium")), reason="chromium or chromedriver not found"
)
WIDTHS = (1280, 400)
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


class Browser:
    """Chromium, controlled through the WebDriver protocol."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        capabilities = {
            "goog:chromeOptions": {"args": OPTIONS, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        session = self._send("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{session['sessionId']}"

    def _send(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, method=verb)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["value"]

    def open(self, page: Path, width: int) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        command = {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics}
        self._send("POST", f"{self._session}/goog/cdp/execute", command)
        self._send("POST", f"{self._session}/url", {"url": page.resolve().as_uri()})

    def evaluate(self, script: str) -> Any:
        return self._send("POST", f"{self._session}/execute/sync", {"script": f"return {script}", "args": []})

    def log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._send("POST", f"{self._session}/se/log", {"type": kind})
        return found

    def close(self) -> None:
        self._send("DELETE", self._session)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    port = free_port()
    with subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL) as driver:
        try:
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            found = Browser(port)
            yield found
            found.close()
        finally:
            driver.terminate()


@pytest.fixture(scope="module")
def page(studies: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "studies"
    shutil.copytree(studies, folder)
    write_report(folder, folder / "REPRODUCIBILITY.md")
    return folder / "index.html"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_opens_without_errors_or_network_requests(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    assert browser.evaluate("document.readyState") == "complete"
    assert browser.log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.log("performance")]
    requested = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert page.resolve().as_uri() in requested
    assert {url.split(":")[0] for url in requested} <= {"file", "data"}
    assert [url for url in requested if url.startswith("file")] == [page.resolve().as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_table_has_rows_and_every_figure_is_visible(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    rows = browser.evaluate("[...document.querySelectorAll('table')].map(t => t.tBodies[0].rows.length)")
    assert len(rows) > 20
    assert min(rows) > 0
    sizes = browser.evaluate(
        "[...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth, i.clientHeight])"
    )
    assert len(sizes) >= 9
    for complete, natural, shown, height in sizes:
        assert complete
        assert min(natural, shown, height) > 100


@pytest.mark.parametrize("width", WIDTHS)
def test_no_element_is_wider_than_the_page(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    assert browser.evaluate("window.innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    outside = browser.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') "
        f"&& e.getBoundingClientRect().right > {width} + 1).map(e => e.tagName + '.' + e.className)"
    )
    assert outside == []


@pytest.mark.parametrize("width", WIDTHS)
def test_text_is_large_enough_to_read(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width)
    sizes = browser.evaluate(
        "[...document.querySelectorAll('p, td, th, li, figcaption, summary')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 12
