"""Three hospitals, each in a network namespace of its own; the link of one is cut and restored.

Run inside a new network namespace, which is the server's: ``unshare --net --mount python three_hospitals.py FOLDER``.
The server is 10.77.0.1 on a bridge, and the hospitals reach it over cables (veth pairs) that end in the bridge.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deployments import submit
from fleet_proxy import fleet_proxy

from fedspecial.flower.app.task_control import request_task_end
from fedspecial.flower.governance.audit import read_lines, verify
from fedspecial.flower.ops.new_app import write_app
from fedspecial.flower.ops.pki import make_authority, make_node_key, make_server_identity
from fedspecial.flower.ops.processes import COMMANDS, LocalFederation

SERVER = "10.77.0.1"
SITES = ("north", "south", "west")
REACH = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)"


def ip(*arguments: object) -> None:
    subprocess.run(["ip", *map(str, arguments)], check=True, timeout=60)


def namespace(site: str) -> str:
    return f"fedspecial-{os.getpid()}-{site}"


@contextmanager
def network() -> Iterator[None]:
    ip("link", "set", "lo", "up")
    ip("link", "add", "bridge", "type", "bridge")
    ip("address", "add", f"{SERVER}/24", "dev", "bridge")
    ip("link", "set", "bridge", "up")
    try:
        for number, site in enumerate(SITES, 2):
            ip("netns", "add", namespace(site))
            ip("link", "add", site, "type", "veth", "peer", "name", "eth0", "netns", namespace(site))
            ip("link", "set", site, "master", "bridge", "up")
            for command in (f"address add 10.77.0.{number}/24 dev eth0", "link set eth0 up", "link set lo up"):
                ip("-n", namespace(site), *command.split())
        yield
    finally:
        for site in SITES:
            subprocess.run(["ip", "netns", "delete", namespace(site)], check=False, timeout=60)


def rounds_of(run: Path) -> list[dict[str, Any]]:
    log = run / "audit.jsonl"
    return [line for line in read_lines(log) if line["event"] == "round"] if log.exists() else []


def took_part(line: dict[str, Any]) -> set[str]:
    return {update["site"] for update in line["updates"]}


def main(folder: Path) -> None:
    identity = make_server_identity(folder / "keys", make_authority(folder / "keys"), hosts=[SERVER])
    write_app(folder / "app")
    environment = {"OMP_NUM_THREADS": "1", "NO_PROXY": "*", "no_proxy": "*"}
    with network(), LocalFederation(folder, tls=identity, environment=environment) as federation:
        federation.start_superlink()
        with fleet_proxy(identity, federation.port, SERVER) as port:
            for site in SITES:
                key = make_node_key(folder / "keys", site)
                federation.register(key)
                config = f'site="{site}" state="{folder / "sites" / site}"'
                command = ["--superlink", f"{SERVER}:{port}", "--host", "127.0.0.1", "--port", "9094"]
                command += ["--root-certificates", str(identity.authority), "--node-config", config]
                command += ["--auth-supernode-private-key", str(key.private)]
                program = [str(COMMANDS / "fedspecial"), "flower", "supernode"]
                federation.start(site, ["ip", "netns", "exec", namespace(site), *program, *command])
            federation.wait_for_nodes(SITES, deadline=240)
            reach_only_the_proxy(port, federation.port)
            run = submit(federation, SITES, {"domains": "paper"}, rounds=200, quorum=0.6, reply_seconds=150.0)

            def wait(done: Callable[[list[dict[str, Any]]], bool], what: str) -> None:
                federation.wait(lambda: done(rounds_of(run)), "run", what, 300, pause=0.5)

            wait(lambda rounds: any(took_part(line) == set(SITES) for line in rounds), "no round with all three")
            ip("link", "set", "south", "down")
            print("the link of south is cut", flush=True)
            wait(lambda rounds: took_part(rounds[-1]) == {"north", "west"}, "no round without south")
            ip("link", "set", "south", "up")
            print("the link of south is restored", flush=True)
            wait(lambda rounds: took_part(rounds[-1]) == set(SITES), "south did not come back")
            request_task_end(run)
            federation.processes["run"].wait(300)
            check(run, federation)


def reach_only_the_proxy(proxy: int, superlink: int) -> None:
    """A hospital reaches the proxy; the SuperLink, whose control interface has no authentication, it does not."""
    for port, reached in ((proxy, True), (superlink, False)):
        command = ["ip", "netns", "exec", namespace("south"), sys.executable, "-c", REACH, SERVER, str(port)]
        done = subprocess.run(command, check=False, capture_output=True, timeout=120)
        assert (done.returncode == 0) is reached, done.stderr


def check(run: Path, federation: LocalFederation) -> None:
    assert (run / "finished.json").exists(), federation.last_lines("run", 60)
    finished, rounds = json.loads((run / "finished.json").read_bytes()), rounds_of(run)
    assert verify(run / "audit.jsonl", finished["audit_head"]).intact
    assert {line["outcome"] for line in rounds} == {"completed"}
    assert set(finished["refusals"]) == {"south"}
    assert (run / "promotion" / "task-1.json").exists()
    tested = json.loads((run / "promotion-history.json").read_bytes())["paper"]["paper"]
    assert set(tested) == set(SITES)
    print(f"{len(rounds)} rounds, {finished['refusals']['south']} without south", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
