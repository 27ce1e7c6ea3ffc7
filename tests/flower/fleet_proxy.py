"""A proxy as described in the app's README: it forwards nodes to the SuperLink and nothing else."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedspecial.flower.ops.pki import ServerIdentity


class Uploads:
    """Uploads of replies through a proxy: once `stop` is set they are not forwarded, and `stopped` says that one began.
    `end` ends them without an answer."""

    def __init__(self) -> None:
        self.stop, self.stopped, self.end = threading.Event(), threading.Event(), threading.Event()

    def forward(self, path: str) -> bool:
        if not (self.stop.is_set() and path.endswith("/push-object")):
            return True
        self.stopped.set()
        self.end.wait(900)
        return False


@contextmanager
def fleet_proxy(
    identity: ServerIdentity, superlink: int, host: str = "127.0.0.1", uploads: Uploads | None = None
) -> Iterator[int]:
    """Port of a TLS server that forwards ``/v1/fleet/`` and refuses everything else."""
    trusted = ssl.create_default_context(cafile=str(identity.authority))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self.path.startswith("/v1/fleet/"):
                self._answer(403, [], b"")
                return
            if uploads is not None and not uploads.forward(self.path):
                self.close_connection = True
                return
            link = http.client.HTTPSConnection("127.0.0.1", superlink, context=trusted, timeout=60)
            try:
                link.request("POST", self.path, body, dict(self.headers.items()))
                answer = link.getresponse()
                self._answer(answer.status, answer.getheaders(), answer.read())
            finally:
                link.close()

        do_GET = do_POST  # noqa: N815 - the library's names

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
