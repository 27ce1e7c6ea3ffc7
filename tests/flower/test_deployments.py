"""Real processes over TLS train the model of one process, even if some of them are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deployments import alone, deployed, kill_server_app, submit, wait_for_end, wait_for_round
from flower_fixtures import finished, reasons_of, rounds_of

from fedspecial.flower.governance.audit import verify
from fedspecial.flower.ops.demo import SITES
from fedspecial.flower.ops.pki import Authority, make_server_identity
from fedspecial.flower.ops.process_tree import find_tagged
from processes import ENVIRONMENT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
TWO = ("north", "south")


def test_a_deployment_trains_the_model_of_one_process(tmp_path: Path) -> None:
    """The only real deployment among the fast tests: keys, app, two sites, one round, a published model."""
    short = {"domains": "paper"}
    with deployed(tmp_path, TWO) as federation:
        run = submit(federation, TWO, short, rounds=1)
        wait_for_end(federation, run, 200)
        pids = find_tagged(federation._tag)
        assert len(pids) >= 2 * (1 + len(TWO))  # each of them has its own executor
    assert not find_tagged(federation._tag)
    assert finished(run)["model_sha256"] == alone(tmp_path, TWO, short, rounds=1)
    assert finished(run)["refusals"] == {}
    assert (run / "published" / "task-1" / "model.safetensors").exists()
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


@pytest.mark.slow
def test_after_a_killed_server_app_the_final_model_is_the_same(tmp_path: Path) -> None:
    with deployed(tmp_path, TWO) as federation:
        run = submit(federation, TWO)
        wait_for_round(federation, run, 1, 0)
        kill_server_app(federation)
        federation.stop("run")
        assert submit(federation, TWO) == run
        wait_for_end(federation, run)
    assert finished(run)["model_sha256"] == alone(tmp_path, TWO)
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


@pytest.mark.slow
def test_after_a_killed_superlink_the_final_model_is_the_same(tmp_path: Path) -> None:
    """The nodes reconnect by themselves; Flower marks the run as failed, and it is submitted again."""
    one = {"domains": "paper"}
    with deployed(tmp_path, TWO) as federation:
        run = submit(federation, TWO, one)
        wait_for_round(federation, run, 1, 0)
        federation.stop("superlink", signal_number=signal.SIGKILL)
        federation.stop("run")
        # A new certificate of the same authority, as when the old one expires, does not lose the run either.
        for name in ("server.pem", "server.key"):
            (tmp_path / "keys" / name).rename(tmp_path / "keys" / f"old-{name}")
        authority = Authority(tmp_path / "keys" / "ca.pem", tmp_path / "keys" / "ca.key")
        make_server_identity(tmp_path / "keys", authority)
        federation.start_superlink()
        assert submit(federation, TWO, one) == run
        wait_for_end(federation, run)
    assert finished(run)["model_sha256"] == alone(tmp_path, TWO, one)
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


@pytest.mark.slow
def test_a_round_continues_without_a_killed_node(tmp_path: Path) -> None:
    three = ("north", "south", "west")
    with deployed(tmp_path, three) as federation:
        run = submit(federation, three, {"domains": "paper"}, quorum=0.6, reply_seconds=45.0)
        wait_for_round(federation, run, 1, 0)
        federation.stop("south", signal_number=signal.SIGKILL)
        wait_for_end(federation, run)
    first, second = rounds_of(run)
    assert [answer["site"] for answer in first["updates"]] == list(three)
    assert [answer["site"] for answer in second["updates"]] == ["north", "west"]
    assert second["outcome"] == "completed"
    assert second["model_after"] != second["model_before"]
    assert set(reasons_of(run)) == {"south"}


@pytest.mark.slow
def test_an_error_of_the_server_reaches_the_user(tmp_path: Path) -> None:
    with deployed(tmp_path, ()) as federation:
        run = submit(federation, TWO, model="spaceship")
        federation.processes["run"].wait(120)
        assert " fedspecial ERROR model=spaceship: not a known model" in federation.log("run").read_text()
        assert not run.exists()


def demo(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedspecial.cli.main", "flower", "demo", "--out", folder.name]
    return subprocess.Popen(
        command, cwd=folder.parent, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def started_in(folder: Path) -> list[str]:
    """Running processes whose Flower home is this folder."""
    found, wanted = [], f"FLWR_HOME={folder / 'flwr'}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_the_demo_trains_two_tasks_and_stops_all_processes(tmp_path: Path) -> None:
    with demo(tmp_path / "demo") as process:
        shown, _ = process.communicate(timeout=900)
    assert process.returncode == 0, shown
    for text in ("4 of 4 sites", "accuracy after neon", "after paper: published", "intact, head"):
        assert text in shown
    assert not started_in(tmp_path / "demo")
    assert sorted(path.name for path in (tmp_path / "demo" / "sites").iterdir()) == sorted(SITES)
    more = {"cap": 300, "width": 8, "min_per_client": 10, "alpha": 1.0, "client_lr": 0.1}
    assert finished(tmp_path / "demo" / "run")["model_sha256"] == alone(tmp_path, SITES, more, local_epochs=5.0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["Ctrl-C", "a dead node"])
def test_an_interrupted_demo_leaves_no_process_running(how: str, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with demo(folder) as process:
        assert process.stdout is not None
        while "SuperNodes started" not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(2)
        if how == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            os.kill(node_in(folder), signal.SIGKILL)
        shown, _ = process.communicate(timeout=120)
    assert process.returncode == (130 if how == "Ctrl-C" else 1), shown
    assert ("no process is left running" if how == "Ctrl-C" else "ended with code -9") in shown
    assert not started_in(folder)


def node_in(folder: Path) -> int:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"FLWR_HOME={folder / 'flwr'}".encode() in (path / "environ").read_bytes()
            if ours and b"flower-supernode" in (path / "cmdline").read_bytes():
                return int(path.name)
        except OSError:
            continue
    raise AssertionError("no node is running")
