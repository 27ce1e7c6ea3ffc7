"""Processes of a federation: they start with authentication and without outside network, and always stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedspecial.errors import InputError
from fedspecial.flower.ops.pki import NodeKey, ServerIdentity, make_authority, make_node_key, make_server_identity
from fedspecial.flower.ops.process_tree import TAG_VARIABLE, find_tagged, is_running
from fedspecial.flower.ops.processes import CLOSED_NETWORK, LocalFederation, ProcessError, free_port

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")

# A process with a child in its own session that ignores SIGTERM, as Flower's SuperLink has one.
STUBBORN = ["sh", "-c", "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.2; done' & sleep 100"]

SCRIPT = f"""
import sys
from pathlib import Path
from fedspecial.flower.ops.processes import LocalFederation
with LocalFederation(Path(sys.argv[1])) as federation:
    federation.start("stubborn", {STUBBORN!r})
    print(federation._tag, flush=True)
    if sys.argv[2] == "exception":
        raise ValueError("something went wrong")
    import time
    time.sleep(100)
"""


def family(mark: str, at_least: int = 0) -> set[int]:
    limit = time.monotonic() + 240
    while len(found := find_tagged(mark)) < at_least and time.monotonic() < limit:
        time.sleep(0.02)
    return found


def test_leaving_the_block_stops_children_and_grandchildren(tmp_path: Path) -> None:
    with LocalFederation(tmp_path) as federation:
        process = federation.start("stubborn", STUBBORN)
        assert len(family(federation._tag, at_least=3)) >= 3
    assert process.returncode is not None
    assert not find_tagged(federation._tag)


@pytest.mark.parametrize(("how", "code"), [("exception", 1), (signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_an_exception_ctrl_c_and_sigterm_leave_no_process_running(tmp_path: Path, how: str | int, code: int) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(how)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        mark = process.stdout.readline().strip()
        if isinstance(how, int):
            assert len(family(mark, at_least=3)) >= 3
            process.send_signal(how)
        _, complaint = process.communicate(timeout=240)
    assert process.returncode == code, complaint
    assert not find_tagged(mark)


def test_stopping_one_process_stops_only_what_it_started(tmp_path: Path) -> None:
    with LocalFederation(tmp_path) as federation:
        federation.start("one", STUBBORN)
        other = federation.start("other", STUBBORN)
        family(federation._tag, at_least=6)
        federation.stop("one", grace=0.5)
        assert not find_tagged(f"{federation._tag}/one")
        assert other.poll() is None
        assert len(find_tagged(f"{federation._tag}/other")) >= 3


def test_started_processes_have_no_outside_network(tmp_path: Path) -> None:
    with LocalFederation(tmp_path) as federation:
        federation.start("shown", ["env"]).wait(240)
        shown = dict(line.split("=", 1) for line in federation.log("shown").read_text().splitlines() if "=" in line)
    for word, value in CLOSED_NETWORK.items():
        assert shown[word] == value
    assert shown["FLWR_HOME"] == str(tmp_path / "flwr")
    assert shown[TAG_VARIABLE].endswith("/shown")


def test_a_process_that_ends_early_is_reported_with_its_log(tmp_path: Path) -> None:
    with LocalFederation(tmp_path) as federation:
        federation.start("node", ["sh", "-c", "echo no data here; exit 7"]).wait(240)
        with pytest.raises(ProcessError, match=r"node ended with code 7:\nno data here"):
            federation.check("node")


def test_waiting_has_a_deadline(tmp_path: Path) -> None:
    with LocalFederation(tmp_path) as federation, pytest.raises(ProcessError, match=r"nothing came after 0\.3 s"):
        federation.wait(lambda: False, None, "nothing came", 0.3)


def test_a_process_name_can_be_used_once(tmp_path: Path) -> None:
    with LocalFederation(tmp_path) as federation:
        federation.start("node", ["sleep", "100"])
        with pytest.raises(InputError, match="process=node"):
            federation.start("node", ["sleep", "100"])


def test_free_ports_are_free_and_differ() -> None:
    assert len({free_port() for _ in range(20)}) > 1


def identities(folder: Path, *names: str) -> tuple[ServerIdentity, list[NodeKey]]:
    identity = make_server_identity(folder / "keys", make_authority(folder / "keys"))
    return identity, [make_node_key(folder / "keys", name) for name in names]


@pytest.mark.slow
def test_a_superlink_and_a_node_start_over_tls_and_stop(tmp_path: Path) -> None:
    identity, (north,) = identities(tmp_path, "north")
    with LocalFederation(tmp_path, tls=identity) as federation:
        federation.start_superlink()
        federation.register(north)
        federation.start_supernode("north", key=north, config={"partition-id": 0, "data": "site north/data"})
        federation.wait_for_nodes(["north"])
        pids = find_tagged(federation._tag)
        assert len(pids) >= 4  # each of the two has an executor of its own
    assert not find_tagged(federation._tag)
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.slow
def test_an_unregistered_node_is_refused(tmp_path: Path) -> None:
    identity, (north, stranger) = identities(tmp_path, "north", "stranger")
    with LocalFederation(tmp_path, tls=identity) as federation:
        federation.start_superlink()
        federation.register(north)
        federation.start_supernode("north", key=north)
        federation.wait_for_nodes(["north"])
        federation.start_supernode("stranger", key=stranger)
        with pytest.raises(ProcessError, match="stranger ended with code"):
            federation.wait_for_nodes(["north", "stranger"])
        federation.start_supernode("nobody")  # a node without any key
        with pytest.raises(ProcessError, match="nobody ended with code"):
            federation.wait_for_nodes(["north", "nobody"])
        assert federation.nodes_online() == 1
    assert not find_tagged(federation._tag)


@pytest.mark.slow
def test_a_node_does_not_connect_to_a_superlink_it_cannot_verify(tmp_path: Path) -> None:
    identity, (north,) = identities(tmp_path, "north")
    other = make_authority(tmp_path / "other")
    with LocalFederation(tmp_path, tls=identity) as federation:
        federation.start_superlink()
        federation.register(north)
        federation.tls = ServerIdentity(other.certificate, identity.certificate, identity.key)
        federation.start_supernode("north", key=north)
        federation.tls = identity
        log = federation.log("north")
        federation.wait(lambda: "CERTIFICATE_VERIFY_FAILED" in log.read_text(), None, "no complaint", 60)
        assert federation.nodes_online() == 0
