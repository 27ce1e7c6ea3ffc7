"""A server over a folder, and requests to it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fedspecial.ui.server import UiServer


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Site:
    """A running server and requests to it as a program, not a browser, would send them."""

    server: UiServer
    folder: Path

    def raw(self, path: str, verb: str = "GET", **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=20)
        connection.putrequest(verb, path, skip_host=True, skip_accept_encoding=True)
        for name, value in ({"Host": f"127.0.0.1:{self.server.server_port}"} | headers).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = b"" if answer.getheader("Content-Type", "").startswith("text/event-stream") else answer.read()
        connection.close()
        return Reply(answer.status, dict(answer.getheaders()), body)

    def get(self, path: str, **headers: str) -> Reply:
        return self.raw(f"/{self.server.token}/{path}", **headers)

    def view(self, name: str, *runs: str) -> dict[str, Any]:
        reply = self.get(f"view/{name}?{urlencode([('run', run) for run in runs])}")
        assert reply.status == 200, reply.body
        found: dict[str, Any] = json.loads(reply.body)
        return found


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    with UiServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield Site(server, folder)
        finally:
            server.shutdown()
            thread.join()
