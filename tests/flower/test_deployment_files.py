"""The deployment files of `fedspecial flower init`: consistent, and accepted by the programs that read them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.common import constant
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

import fedspecial
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


COMPOSE_ATTRIBUTES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("image", "restart", "network_mode"), str),
    **dict.fromkeys(("build", "environment"), dict),
    **dict.fromkeys(("profiles", "volumes", "entrypoint"), list),
    "command": (str, list),
    "init": bool,
}
"""The attributes of a service that our file uses, with the types that the Compose specification gives them."""
PARSERS = {
    ("flower-superlink",): _parse_args_run_superlink,
    ("fedspecial", "flower", "supernode"): _parse_args_run_supernode,  # which passes its arguments on
}


def composed(deploy: Path, **variables: str) -> dict[str, Any]:
    """The services, with variables replaced as Compose replaces them."""

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: replaced(part) for key, part in value.items()}
        if isinstance(value, list):
            return [replaced(part) for part in value]
        if not isinstance(value, str):
            return value
        return re.sub(r"\$(?:\{(\w+)\}|\$)", lambda found: variables[found[1]] if found[1] else "$", value)

    return dict(replaced(yaml.safe_load((deploy / "compose.yaml").read_text())["services"]))


def check_command(words: list[str]) -> Any:
    """That the program is installed and accepts the arguments; returns them."""
    start = next(start for start in PARSERS if tuple(words[: len(start)]) == start)
    assert start[0] in {entry.name for entry in entry_points(group="console_scripts")}
    return PARSERS[start]().parse_args(words[len(start) :])


def test_compose_uses_only_attributes_of_its_specification(deploy: Path) -> None:
    """Compose refuses a file with an attribute that it does not know, or with a value of another type."""
    file = yaml.safe_load((deploy / "compose.yaml").read_text())
    assert [key for key in file if not key.startswith("x-")] == ["services"]
    for name, service in file["services"].items():
        for key, value in service.items():
            assert isinstance(value, COMPOSE_ATTRIBUTES[key]), (name, key)
        assert service["restart"] in {"no", "always", "on-failure", "unless-stopped"}
        assert all(re.fullmatch(r"[^:]+:[^:]+(:ro)?", volume) for volume in service["volumes"])
        assert service.get("build", {}).keys() <= {"context", "dockerfile_inline"}
        assert all(isinstance(value, str) for value in service.get("environment", {}).values())


def test_compose_mounts_what_its_commands_read(deploy: Path) -> None:
    for name, service in composed(deploy, SITE="north").items():
        mounted = [volume.split(":") for volume in service["volumes"]]
        for source, *_ in mounted:
            assert source.startswith("/") or (deploy / source).exists(), source
        text = json.dumps([service.get("command", ""), service.get("environment", "")])
        for path in re.findall(r"(?:/etc|/srv)/[\w./-]+", text):
            assert any(path.startswith(target) for _, target, *_ in mounted), (name, path)


def test_flower_accepts_the_command_of_the_superlink(deploy: Path) -> None:
    commands = [composed(deploy, SITE="north")["superlink"]["command"]]
    commands += re.findall(r"ExecStart=/opt/fedspecial/bin/([^\n]+)", joined(deploy / "fedspecial-superlink.service"))
    assert len(commands) == 2
    for command in commands:
        found = check_command(shlex.split(command))
        assert (found.host, found.port, found.enable_supernode_auth) == ("127.0.0.1", 8443, True)


def test_flower_accepts_the_command_of_a_supernode_from_systemd(deploy: Path) -> None:
    text = joined(deploy / "fedspecial-supernode@.service")
    (command,) = re.findall(r"ExecStart=/opt/fedspecial/bin/([^\n]+)", text)
    (config,) = re.findall(r"NODE_CONFIG='([^\n]+)'", text)
    words = [word.replace("${NODE_CONFIG}", config).replace("%i", "north") for word in shlex.split(command)]
    found = check_command(words)
    assert found.auth_supernode_private_key == "/etc/fedspecial/keys/north"
    assert found.node_config == config


def test_the_container_of_a_site_starts_the_supernode_and_pauses_before_it_starts_again(
    deploy: Path, tmp_path: Path
) -> None:
    """With the shell that Compose starts, and programs that write down what they were called with."""
    service = composed(deploy, SITE="north")["supernode"]
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("fedspecial", "sleep"):
        (programs / name).write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" >> {tmp_path}/calls\n')
        (programs / name).chmod(0o700)
    words = [word.replace("/tmp/started", str(tmp_path / "started")) for word in service["entrypoint"]]
    environment = {"PATH": f"{programs}:/usr/bin:/bin", **service["environment"]}
    for _ in range(2):
        subprocess.run([*words, *service["command"]], env=environment, check=True, timeout=60)
    calls = (tmp_path / "calls").read_text().splitlines()
    again = calls.index("sleep")
    assert calls[again:] == ["sleep", str(RESTART_SECONDS), *calls[:again]]
    found = check_command(calls[:again])
    assert found.node_config == service["environment"]["NODE_CONFIG"]
    assert found.node_config.startswith('site="north" data="/srv/scans"')
    assert found.auth_supernode_private_key == "/etc/fedspecial/keys/north"


def test_the_image_is_built_from_the_wheel_of_this_version(deploy: Path) -> None:
    """fedspecial may be missing from a package index, or somebody else's package may have its name there."""
    wheel = f"fedspecial-{fedspecial.__version__}-py3-none-any.whl"
    text = (deploy / "compose.yaml").read_text()
    assert f"COPY {wheel} /tmp/\n" in text
    assert f'pip install --no-cache-dir "/tmp/{wheel}[flower]"\n' in text
    assert wheel in (Path(__file__).parents[2] / "docs" / "how-to" / "three-hospitals.md").read_text(encoding="utf-8")
