"""Only who has the address sees anything, nothing outside the folder is shown, and nothing can be changed."""

from __future__ import annotations

import http.client
import os
import re
from importlib import resources
from pathlib import Path

import pytest
from run_factory import write_run
from ui_site import Site

ROUTES = (
    "",
    "static/app.js",
    "static/components.css",
    "view/overview",
    "view/run?run=a",
    "live/overview",
    "file?run=a&name=config.yaml",
)


@pytest.fixture
def run(site: Site) -> Path:
    return write_run(site.folder / "a")


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_answers_with_the_token_and_is_refused_without_it(site: Site, run: Path, route: str) -> None:
    assert site.get(route).status == 200
    wrong = "x" * len(site.server.token)
    for path in (f"/{route}", f"/{wrong}/{route}", f"/{site.server.token[:-1]}/{route}", f"//{route}"):
        reply = site.raw(path)
        assert reply.status == 403
        assert site.server.token.encode() not in reply.body


@pytest.mark.parametrize("route", ROUTES)
def test_another_host_name_is_refused(site: Site, run: Path, route: str) -> None:
    for host in ("evil.example", f"evil.example:{site.server.server_port}", "127.0.0.1.evil.example", ""):
        assert site.get(route, Host=host).status == 403


def test_an_address_that_is_none_is_refused(site: Site, run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert site.raw("http://[").status == 403
    assert capfd.readouterr().err == ""


def test_a_fault_of_the_server_is_reported_where_it_was_started(
    site: Site, run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fault(*arguments: object) -> None:
        raise RuntimeError("a bug of a view")

    monkeypatch.setattr(site.server, "look", fault)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        site.get("view/overview")
    assert "a bug of a view" in capfd.readouterr().err


def test_a_forwarded_port_is_accepted(site: Site, run: Path) -> None:
    assert site.get("view/overview", Host="localhost:9999").status == 200


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_only_get_is_answered(site: Site, run: Path, verb: str) -> None:
    assert site.raw(f"/{site.server.token}/view/overview", verb).status == 501


@pytest.mark.parametrize("route", [*ROUTES, "nothing", "view/nothing"])
def test_every_answer_has_the_headers_of_a_page_that_trusts_nobody(site: Site, run: Path, route: str) -> None:
    for reply in (site.get(route), site.raw(f"/{route}")):
        assert reply.headers["Referrer-Policy"] == "no-referrer"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Cache-Control"] == "no-store"
        policy = reply.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "Access-Control-Allow-Origin" not in reply.headers


def test_the_server_listens_on_this_machine_only(site: Site) -> None:
    assert site.server.server_address[0] == "127.0.0.1"


def test_the_token_is_long_and_different_every_time(site: Site, tmp_path: Path) -> None:
    from fedspecial.ui.server import UiServer

    with UiServer(tmp_path) as other:
        assert len(other.token) >= 32
        assert other.token != site.server.token


@pytest.mark.parametrize("name", ["../secret.txt", "..%2Fsecret.txt", "a/../../secret.txt", "/etc/passwd", "", "."])
def test_a_path_cannot_leave_the_run(site: Site, run: Path, name: str) -> None:
    (site.folder.parent / "secret.txt").write_text("secret")
    (site.folder / "secret.txt").write_text("secret")
    assert site.get(f"file?run=a&name={name}").status == 404
    for route in (f"static/{name}", f"static/../{name}", f"view/run?run={name}", f"view/run?run=../{name}"):
        reply = site.get(route)
        assert reply.status == 404
        assert reply.body != b"secret\n"


def test_a_link_out_of_the_folder_is_not_followed(site: Site, run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "notes.json").write_text('{"acc": 1, "secret": "secret"}')
    write_run(outside / "foreign")
    (run / "link.json").symlink_to(outside / "notes.json")
    (run / "folder").symlink_to(outside)
    (site.folder / "linked").symlink_to(outside / "foreign")
    assert site.get("file?run=a&name=link.json").status == 404
    assert site.get("file?run=a&name=folder/notes.json").status == 404
    found = site.view("overview")
    assert "row/linked" not in found
    assert found["about"]["problems"] == [
        {"file": "linked", "text": "it is a symbolic link, which this page does not follow"}
    ]


@pytest.mark.parametrize("name", ["events.jsonl", "result.json", "config.yaml"])
def test_a_file_of_a_run_that_is_a_link_is_named_and_not_read(site: Site, run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text('{"event": "data_notice", "text": "secret", "acc": 0.5}\n')
    (run / name).unlink()
    (run / name).symlink_to(tmp_path / "secret")
    found = site.view("run", "a")
    assert {"file": name, "text": "it is a symbolic link, which this page does not follow"} in found["problems"]
    assert "secret" not in str(found["warnings"])


def test_a_pipe_does_not_block_the_page(site: Site, run: Path) -> None:
    (run / "events.jsonl").unlink()
    os.mkfifo(run / "events.jsonl")
    assert {"file": "events.jsonl", "text": "it is not a regular file"} in site.view("run", "a")["problems"]


def test_a_file_of_a_run_is_never_shown_as_html(site: Site, run: Path) -> None:
    (run / "page.html").write_text("<script>alert(1)</script>")
    (run / "page.svg").write_text("<svg/>")
    for name in ("page.html", "page.svg"):
        reply = site.get(f"file?run=a&name={name}")
        assert reply.headers["Content-Type"] == "application/octet-stream"
        assert reply.headers["Content-Disposition"] == "attachment"
        assert "sandbox" in reply.headers["Content-Security-Policy"]
    assert site.get("file?run=a&name=config.yaml").headers["Content-Type"] == "text/plain; charset=utf-8"


def test_looking_changes_no_file(site: Site, run: Path) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in site.folder.rglob("*") if p.is_file()}

    before = state()
    for name in ("overview", "run", "compare", "federation"):
        site.view(name, "a")
    assert state() == before


def test_the_pages_scripts_cannot_turn_text_into_markup() -> None:
    """The files of the package set texts, never HTML, and name no other host."""
    folders = [resources.files("fedspecial.ui") / "static", resources.files("fedspecial.report") / "web"]
    files = [file for folder in folders for file in folder.iterdir() if not file.name.startswith("uPlot")]
    assert len(files) > 12
    for file in files:
        text = file.read_text(encoding="utf-8")
        if file.name.endswith((".js", ".html", ".css")):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), (
                file
            )
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), file
            assert not re.search(r"<script>|<style|\sstyle=|\son[a-z]+=\"", text), file
