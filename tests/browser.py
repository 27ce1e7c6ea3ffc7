"""Chromium, controlled through the WebDriver protocol, for tests that open a page as a reader does."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

OPTIONS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    # A page can connect to this machine only: no host name is resolved.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]


def require_chromium() -> None:
    """Skip the test without Chromium, or fail where FEDSPECIAL_REQUIRE_BROWSER=1 says that it must be present."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if not missing:
        return
    message = f"{' and '.join(missing)} not found; install Debian's packages chromium and chromium-driver"
    if os.environ.get("FEDSPECIAL_REQUIRE_BROWSER") == "1":
        pytest.fail(message)
    pytest.skip(message)


class Browser:
    """One session of Chromium."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        capabilities = {
            "goog:chromeOptions": {"args": OPTIONS, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        reply = self._request("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{reply['sessionId']}"

    def _request(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, method=verb)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["value"]

    def open(self, url: str, width: int) -> None:
        """Show a page in a window of this width, and return when it has finished loading."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", **metrics)
        self._request("POST", f"{self._session}/url", {"url": url})
        # On a machine with much other work, the driver may return while the page is still loading.
        deadline = time.monotonic() + 60
        while self.evaluate("document.readyState") != "complete":
            assert time.monotonic() < deadline, f"{url} did not finish loading"
            time.sleep(0.05)

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the Chrome DevTools protocol."""
        return self._request("POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def evaluate(self, script: str) -> Any:
        return self._request("POST", f"{self._session}/execute/sync", {"script": f"return {script}", "args": []})

    def log(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._request("POST", f"{self._session}/se/log", {"type": kind})
        return found

    def requested_urls(self) -> set[str]:
        """The URLs requested since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}

    def close(self) -> None:
        self._request("DELETE", self._session)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that is closed at the end of the `with` block."""
    require_chromium()
    port = free_port()
    with subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL) as driver:
        try:
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            browser = Browser(port)
            yield browser
            browser.close()
        finally:
            driver.terminate()
