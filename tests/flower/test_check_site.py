"""`fedspecial flower check-site`: what is wrong at a site is found before it joins."""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from flwr.common.config import parse_config_args
from typer.testing import CliRunner

from fedspecial.cli.main import app as cli
from fedspecial.errors import InputError
from fedspecial.flower.ops import check_site as module
from fedspecial.flower.ops.check_site import check_site
from fedspecial.flower.ops.new_app import write_app
from fedspecial.flower.ops.pki import make_authority, make_node_key, make_server_identity
from fedspecial.flower.ops.supernode_arguments import check_arguments, parse_node_config


@pytest.fixture
def app(tmp_path: Path) -> Path:
    write_app(tmp_path / "hospitals")
    path = tmp_path / "hospitals" / "pyproject.toml"
    text = path.read_text()
    for key, value in {
        "tasks": "2019,2022",
        "classes": "a,b",
        "shape": "5",
        "kind": "table",
        "model": "logistic",
    }.items():
        start = text.index(f"\n{key} = ")
        text = text[: start + 1] + f'{key} = "{value}"' + text[text.index("\n", start + 1) :]
    path.write_text(text)
    return tmp_path / "hospitals"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "scans").mkdir()
    x, y = np.zeros((12, 5), np.float32), np.arange(12) % 2
    np.savez(tmp_path / "scans" / "2019.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return tmp_path / "scans"


def node_config(data: Path, **more: str) -> str:
    given = {"site": "north", "data": data, "state": data.parent / "state", **more}
    return " ".join(f'{key}="{value}"' for key, value in given.items())


def test_a_site_that_is_ready(app: Path, data: Path, tmp_path: Path) -> None:
    key = make_node_key(tmp_path / "keys", "north").private
    found = check_site(node_config(data), app, key)
    assert found.failed == []
    assert "data: task '2019': 12 training and 12 test samples" in found.passed
    assert "data: task '2022': this site has none, so it takes no part in the task" in found.notes
    assert any(text.startswith("disk: ") for text in found.passed)
    assert any("must be registered: ecdsa-sha2-nistp384 " in text for text in found.passed)


def test_each_fault_is_named(app: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "2022.npz").write_bytes(b"damaged")
    key = make_node_key(tmp_path / "keys", "north").private
    key.chmod(0o644)
    monkeypatch.setattr(module, "LEAST_FREE_BYTES", 10**18)
    policy = tmp_path / "policy.yaml"
    policy.write_text("methods: [fedavg]")
    failed = check_site(node_config(data, policy=str(policy)), app, key, "127.0.0.1:1").failed
    assert any("method=special: this site allows only fedavg" in text for text in failed)
    policy.write_text("min_group: 13")
    failed += check_site(node_config(data, policy=str(policy)), app, key, "127.0.0.1:1").failed
    for text in (
        "data: task '2019': 12 training and 12 test samples, fewer than min_group=13",
        "data: task '2022': ",
        "GB are free; 1 GB is the least",
        "others can read it; chmod 600",
        "connection: 127.0.0.1:1: cannot be reached",
    ):
        assert any(text in line for line in failed), text
    policy.write_text("mehtods: [fedavg]")
    (line,) = [t for t in check_site(node_config(data, policy=str(policy))).failed if t.startswith("policy")]
    assert "mehtods" in line
    with pytest.raises(InputError, match='"north" is not KEY=VALUE'):
        check_site("north")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("site=north", 'site=north: text needs double quotes: site="north"'),
        ('site="north data="/srv/scans"', "is not KEY=VALUE, or a quotation mark is missing"),
        ('site="north" policy', '"policy" is not KEY=VALUE'),
        ("nothing.toml", "nothing.toml: cannot be read"),
    ],
)
def test_a_node_config_is_accepted_only_if_the_supernode_accepts_it(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flower answers these with a traceback, or leaves a part of them out."""
    with pytest.raises(InputError, match=re.escape(message)):
        check_site(text)
    for command in (["check-site", "--node-config", text], ["supernode", "--insecure", "--node-config", text]):
        done = CliRunner().invoke(cli, ["flower", *command])
        assert done.exit_code == 2
        assert message in done.output


def test_the_node_config_is_what_flower_reads(data: Path, tmp_path: Path) -> None:
    text = f"{node_config(data)} device='cpu' gpus=1 share=0.5 on=true"
    assert parse_node_config(text) == parse_config_args([text])
    (tmp_path / "node.toml").write_text('site = "north"\ngpus = 1\n')
    file = str(tmp_path / "node.toml")
    assert parse_node_config(file) == parse_config_args([file])


def test_a_misspelt_policy_is_no_silent_default(data: Path) -> None:
    """Without its policy, a site would take part under the defaults."""
    (line,) = [text for text in check_site(node_config(data, polcy="strict.yaml", gpus="1")).failed]
    assert line == "node config: unknown key 'polcy' (did you mean 'policy'?)"
    assert check_arguments(["--node-config", 'site="north" polcy="strict.yaml"']) == [line]


def test_the_supernode_is_not_started_with_a_key_that_it_cannot_use(tmp_path: Path) -> None:
    key = make_node_key(tmp_path / "keys", "north")
    key.private.chmod(0o640)
    (tmp_path / "text").write_text("no key")
    (tmp_path / "text").chmod(0o600)
    for option, value, message in (
        ("--auth-supernode-private-key", tmp_path / "absent", "the private key cannot be read (No such file"),
        ("--auth-supernode-private-key", key.private, "others can read it; chmod 600"),
        ("--auth-supernode-private-key", tmp_path / "text", "not a private key in OpenSSH format"),
        ("--root-certificates", tmp_path / "absent", "there is no such file"),
    ):
        for arguments in ([option, str(value)], [f"{option}={value}"]):
            done = CliRunner().invoke(cli, ["flower", "supernode", *arguments])
            assert done.exit_code == 2
            assert message in done.output
    key.private.chmod(0o600)
    assert check_arguments(["--insecure", "--auth-supernode-private-key", str(key.private)]) == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, dict[str, str]]]:
    """A TLS server with a certificate of the federation, which tells a date."""
    identity = make_server_identity(tmp_path / "tls", make_authority(tmp_path / "tls"))
    told = {"Date": ""}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(403)
            self.send_header("Date", told["Date"] or self.date_time_string())
            self.end_headers()

    http = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    http.socket = context.wrap_socket(http.socket, server_side=True)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield f"localhost:{http.server_port}", identity.authority, told
    http.shutdown()
    http.server_close()


def test_connection_certificate_and_clock(server: tuple[str, Path, dict[str, str]], data: Path, tmp_path: Path) -> None:
    address, authority, told = server
    found = check_site(node_config(data), superlink=address, root_certificates=authority)
    assert found.failed == []
    assert f"connection: {address} answers, and its certificate is valid" in found.passed
    assert "clock: it agrees with the server's within 30 s" in found.passed
    told["Date"] = "Mon, 01 Jan 2024 00:00:00 GMT"
    (wrong,) = check_site(node_config(data), superlink=address, root_certificates=authority).failed
    assert wrong.startswith("clock: it differs from the server's by +")
    told["Date"] = "yesterday"
    odd = check_site(node_config(data), superlink=address, root_certificates=authority)
    assert odd.failed == []
    assert "clock: the server does not tell its time" in odd.notes
    other = make_authority(tmp_path / "other").certificate
    (refused,) = check_site(node_config(data), superlink=address, root_certificates=other).failed
    assert "its certificate is refused" in refused


@pytest.mark.parametrize("address", ["link..example.org:443", "x" * 70 + ":443"])
def test_a_name_that_cannot_exist_is_a_failed_check(address: str, data: Path) -> None:
    (line,) = check_site(node_config(data), superlink=address).failed
    assert line.startswith(f"connection: {address}: cannot be reached (")


def test_the_brackets_of_an_ipv6_address_are_not_a_part_of_it(data: Path) -> None:
    with patch("fedspecial.flower.ops.check_site.HTTPSConnection", side_effect=ConnectionRefusedError("no")) as connect:
        check_site(node_config(data), superlink="[2001:db8::1]:443")
    assert connect.call_args.args == ("2001:db8::1", 443)
