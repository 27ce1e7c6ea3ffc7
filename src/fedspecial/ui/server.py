"""The HTTP server of the page: this machine only, GET only, nothing without the token of the address.

/TOKEN/                           the page
/TOKEN/static/NAME                scripts and styles of the package
/TOKEN/view/VIEW?run=RUN          the parts of a view as one JSON object
/TOKEN/live/VIEW?run=RUN          the same as server-sent events: all parts, then those that changed
/TOKEN/file?run=RUN&name=NAME     a file of a run directory
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from fedspecial.errors import InputError
from fedspecial.ui.files import UnreadableFileError, open_regular
from fedspecial.ui.index import RunIndex
from fedspecial.ui.views import VIEWS, Content, Parts

HOST = "127.0.0.1"
POLL_SECONDS = 0.5
BUSY_SECONDS = 0.02
"""The same while a long file is still being read."""
SILENT_SECONDS = 15.0
"""After this time without news a comment is sent, so that a closed page is noticed."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILE_POLICY = "default-src 'none'; sandbox"
HEADERS = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".txt": "text/plain"}
SHOWN = {".png": "image/png"} | dict.fromkeys((".json", ".jsonl", ".yaml", ".md", ".txt", ".csv"), "text/plain")
"""Files of runs that the browser shows; all others are downloaded. None is shown as HTML."""


class UiServer(ThreadingHTTPServer):
    """`address` is the only way in; it contains the token."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__((HOST, port), Handler)
        self.index = RunIndex(folder)
        self.token = secrets.token_urlsafe(24)
        self.lock = threading.Lock()
        self.closing = threading.Event()

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def look(self, view: str, runs: Sequence[str]) -> Content:
        """One page at a time looks at the files; each look is short."""
        with self.lock:
            return VIEWS[view](self.index, runs)

    def server_close(self) -> None:
        self.closing.set()
        super().server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that closes its connection is no error."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: UiServer

    def log_message(self, format: str, *args: object) -> None:
        """Requests contain the token and are not logged."""

    def version_string(self) -> str:
        return "fedspecial"

    def do_GET(self) -> None:
        path = self._authorized_path()
        if path is None:
            self._refuse(HTTPStatus.FORBIDDEN, "403: open the address that fedspecial ui printed")
            return
        name, _, rest = path.partition("/")
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        runs = query.get("run", [])
        try:
            if path == "":
                self._send(static_file("index.html"), "text/html")
            elif name == "static":
                self._send(static_file(rest), TYPES[Path(rest).suffix])
            elif name == "view" and rest in VIEWS:
                self._send(_as_object(self.server.look(rest, runs).parts), "application/json")
            elif name == "live" and rest in VIEWS:
                self._stream(rest, runs)
            elif path == "file":
                self._send_run_file(runs, query.get("name", [""])[0])
            else:
                raise FileNotFoundError
        except (FileNotFoundError, KeyError, InputError, UnreadableFileError) as error:
            text = str(error) if isinstance(error, InputError | UnreadableFileError) else "there is no such page"
            self._refuse(HTTPStatus.NOT_FOUND, f"404: {text}")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _authorized_path(self) -> str | None:
        """The path after the token, or None.

        The Host header is checked against DNS rebinding. Its port may differ, because SSH can forward any port.
        """
        given, _, path = urlsplit(self.path).path.removeprefix("/").partition("/")
        right_token = hmac.compare_digest(given.encode(), self.server.token.encode())
        right_host = self.headers.get("Host", "").partition(":")[0] in (HOST, "localhost")
        return path if right_token and right_host else None

    def _start(self, status: HTTPStatus, kind: str, policy: str = POLICY, **headers: str) -> None:
        self.send_response(status)
        text = kind.startswith(("text/", "application/json"))
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if text else kind)
        for name, value in {**HEADERS, "Content-Security-Policy": policy, **headers}.items():
            self.send_header(name, value)

    def _send(self, data: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._start(status, kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._send(f"{text}\n".encode(errors="replace"), "text/plain", status)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Also for requests that the parser refuses: the same headers, and no copy of the request in the answer."""
        self.close_connection = True
        self._refuse(HTTPStatus(code), f"{code}: {HTTPStatus(code).phrase}")

    def _stream(self, view: str, runs: Sequence[str]) -> None:
        messages: Iterator[bytes]
        try:
            messages = self._messages(view, runs, self.server.look(view, runs))
        except InputError as error:  # told as an event: a page cannot read the status of a stream
            messages = iter([_gone(error)])
        self._start(HTTPStatus.OK, "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for message in messages:
            self.wfile.write(message)
            self.wfile.flush()

    def _messages(self, view: str, runs: Sequence[str], found: Content) -> Iterator[bytes]:
        sent = found.parts
        yield _message(_as_object(sent))
        spoken = time.monotonic()
        while not self.server.closing.wait(POLL_SECONDS if found.complete else BUSY_SECONDS):
            try:
                found = self.server.look(view, runs)
            except InputError as error:
                yield _gone(error)
                return
            news = {name: text for name, text in found.parts.items() if sent.get(name) != text}
            news |= {name: "null" for name in sent if name not in found.parts}
            sent = found.parts
            if news:
                yield _message(_as_object(news))
                spoken = time.monotonic()
            elif time.monotonic() - spoken > SILENT_SECONDS:
                yield b": still here\n\n"
                spoken = time.monotonic()

    def _send_run_file(self, runs: Sequence[str], name: str) -> None:
        with self.server.lock:
            found = self.server.index.open(runs[0]) if runs else None
        if found is None or name not in {file["name"] for file in found.files()}:
            raise FileNotFoundError
        path = found.folder / name
        kind = SHOWN.get(path.suffix)
        with open_regular(self.server.index.root, path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            extra = {} if kind else {"Content-Disposition": "attachment"}
            self._start(HTTPStatus.OK, kind or "application/octet-stream", FILE_POLICY, **extra)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            left = size
            while left > 0 and (data := file.read(min(left, 1 << 20))):
                self.wfile.write(data)
                left -= len(data)
            self.close_connection = self.close_connection or left > 0


def static_file(name: str) -> bytes:
    """A file of the page; those that the report of studies shares are in fedspecial.report."""
    for package, folder in (("fedspecial.ui", "static"), ("fedspecial.report", "web")):
        files = {entry.name: entry for entry in resources.files(package).joinpath(folder).iterdir() if entry.is_file()}
        if name in files:
            return files[name].read_bytes()
    raise FileNotFoundError(name)


def _as_object(parts: Parts) -> bytes:
    return ("{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in parts.items()) + "}").encode()


def _message(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _gone(error: InputError) -> bytes:
    return b"event: gone\n" + _message(json.dumps(str(error)).encode())
