"""The deployment files of `fedspecial flower init`: consistent, and accepted by the programs that read them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from flwr.common import constant

from fedspecial.flower.ops.new_app import HEARTBEAT_SECONDS, RESTART_SECONDS, write_app
from fedspecial.flower.ops.pki import make_authority, make_server_identity

LINK = "link.example.org"


@pytest.fixture(scope="module")
def deploy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app") / "hospitals"
    write_app(folder)
    return folder / "deploy"


def joined(path: Path) -> str:
    """The file without line breaks inside commands."""
    return re.sub(r"\\?\n\s+", " ", path.read_text())


def test_a_killed_supernode_is_restarted_when_the_superlink_no_longer_counts_it_as_connected(deploy: Path) -> None:
    assert constant.HEARTBEAT_PATIENCE * constant.HEARTBEAT_DEFAULT_INTERVAL == HEARTBEAT_SECONDS
    assert RESTART_SECONDS > HEARTBEAT_SECONDS
    unit = (deploy / "fedspecial-supernode@.service").read_text()
    assert f"\nRestartSec={RESTART_SECONDS}\n" in unit
    assert f"sleep {RESTART_SECONDS};" in (deploy / "compose.yaml").read_text()
    for name in ("fedspecial-supernode@.service", "fedspecial-superlink.service"):
        text = (deploy / name).read_text()
        assert "\nRestart=always\n" in text
        assert "\nStartLimitIntervalSec=0\n" in text


def test_ports_names_and_paths_agree(deploy: Path) -> None:
    superlink, node = (joined(deploy / f"fedspecial-{name}.service") for name in ("superlink", "supernode@"))
    nginx, compose = joined(deploy / "nginx.conf"), (deploy / "compose.yaml").read_text()
    services = yaml.safe_load(compose)["services"]
    server, site = str(services["superlink"]["command"]), str(services["supernode"]["command"])
    for command in (superlink, server):
        assert "--host 127.0.0.1 --port 8443" in command
        assert "--enable-supernode-auth" in command
        assert "--disable-runtime-dependency-installation" in command
    assert "proxy_pass https://127.0.0.1:8443;" in nginx
    assert f"server_name {LINK};" in nginx
    assert "listen 443 ssl;" in nginx
    for command in (node, site):
        assert f"fedspecial flower supernode --superlink {LINK}:443" in command
        assert "--root-certificates /etc/fedspecial/keys/ca.pem" in command
    keys = {path for text in (superlink, nginx, server) for path in re.findall(r"/etc/fedspecial/keys/[\w.]+", text)}
    assert keys == {f"/etc/fedspecial/keys/{file}" for file in ("ca.pem", "server.pem", "server.key")}
    assert services["supernode"]["init"] is True
    assert services["superlink"]["init"] is True
    readme = (deploy.parent / "README.md").read_text()
    assert "--port 8443" in readme
    assert f"{LINK}:443" in readme


def test_only_the_interface_for_nodes_is_forwarded(deploy: Path) -> None:
    locations = re.findall(r"location (\S+) \{", (deploy / "nginx.conf").read_text())
    assert locations == ["/v1/fleet/", "/"]
    assert "location / { return 403; }" in (deploy / "nginx.conf").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("name", ["superlink", "supernode@"])
def test_systemd_accepts_the_units(deploy: Path, tmp_path: Path, name: str) -> None:
    """With a program that exists here, as `verify` looks for it."""
    text = re.sub(r"/opt/fedspecial/bin/[\w-]+", "/bin/true", (deploy / f"fedspecial-{name}.service").read_text())
    unit = tmp_path / f"fedspecial-{name.replace('@', '@north')}.service"
    unit.write_text(text.replace("User=fedspecial", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert str(unit.name) not in done.stderr, done.stderr  # warnings about unknown settings


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_accepts_its_configuration(deploy: Path, tmp_path: Path) -> None:
    make_server_identity(tmp_path, make_authority(tmp_path), hosts=[LINK])
    server = (deploy / "nginx.conf").read_text().replace("/etc/fedspecial/keys", str(tmp_path))
    text = f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off; {server} }}"
    (tmp_path / "nginx.conf").write_text(text)
    command = ["nginx", "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_compose_leaves_the_shell_its_variables(deploy: Path) -> None:
    """Compose replaces ${SITE} itself, and $$ by $, which the shell in the container reads."""
    text = (deploy / "compose.yaml").read_text()
    assert set(re.findall(r"(?<!\$)\$(?!\$)\{?\w*\}?", text)) == {"${SITE}"}
    assert set(re.findall(r"\$\$[\w@]+", text)) == {"$$@", "$$NODE_CONFIG"}
