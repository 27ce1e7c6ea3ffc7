"""Real processes over TLS: the model of one process, whatever is killed on the way."""

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
from fedspecial.flower.ops.children import marked
from fedspecial.flower.ops.demo import SITES
from processes import ENVIRONMENT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
TWO = ("north", "south")


def test_a_deployment_learns_the_model_of_one_process(tmp_path: Path) -> None:
    """The one real deployment of the fast tests: keys, app, two sites, one round, a published model."""
    short = {"domains": "paper"}
    with deployed(tmp_path, TWO) as federation:
        run = submit(federation, TWO, short, rounds=1)
        wait_for_end(federation, run, 200)
        pids = marked(federation._mark)
        assert len(pids) >= 2 * (1 + len(TWO))  # each of them has an executor of its own
    assert not marked(federation._mark)
    assert finished(run)["model_sha256"] == alone(tmp_path, TWO, short, rounds=1)
    assert finished(run)["refusals"] == {}
    assert (run / "published" / "task-1" / "model.safetensors").exists()
    assert verify(run / "audit.jsonl", finished(run)["head"]).sound


@pytest.mark.slow
def test_a_killed_server_app_goes_on_to_the_same_model(tmp_path: Path) -> None:
    with deployed(tmp_path, TWO) as federation:
        run = submit(federation, TWO)
        wait_for_round(federation, run, 1, 0)
        kill_server_app(federation)
        federation.stop("run")
        assert submit(federation, TWO) == run
        wait_for_end(federation, run)
    assert finished(run)["model_sha256"] == alone(tmp_path, TWO)
    assert verify(run / "audit.jsonl", finished(run)["head"]).sound


@pytest.mark.slow
def test_a_killed_superlink_goes_on_to_the_same_model(tmp_path: Path) -> None:
    """Its nodes come back by themselves; Flower gives the run up, and it is submitted again."""
    one = {"domains": "paper"}
    with deployed(tmp_path, TWO) as federation:
        run = submit(federation, TWO, one)
        wait_for_round(federation, run, 1, 0)
        federation.stop("superlink", number=signal.SIGKILL)
        federation.stop("run")
        federation.start_superlink()
        assert submit(federation, TWO, one) == run
        wait_for_end(federation, run)
    assert finished(run)["model_sha256"] == alone(tmp_path, TWO, one)
    assert verify(run / "audit.jsonl", finished(run)["head"]).sound


@pytest.mark.slow
def test_without_a_killed_node_the_round_goes_on(tmp_path: Path) -> None:
    three = ("north", "south", "west")
    with deployed(tmp_path, three) as federation:
        run = submit(federation, three, {"domains": "paper"}, quorum=0.6, answer_seconds=45.0)
        wait_for_round(federation, run, 1, 0)
        federation.stop("south", number=signal.SIGKILL)
        wait_for_end(federation, run)
    first, second = rounds_of(run)
    assert [answer["site"] for answer in first["answers"]] == list(three)
    assert [answer["site"] for answer in second["answers"]] == ["north", "west"]
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
    command = [sys.executable, "-m", "fedspecial.cli.main", "flower", "demo", "--out", str(folder)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs are deaf to it
    )  # fmt: skip


def started_in(folder: Path) -> list[str]:
    """Living processes whose Flower home is this folder."""
    found, wanted = [], f"FLWR_HOME={folder / 'flwr'}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_the_demo_learns_two_tasks_and_takes_everything_down(tmp_path: Path) -> None:
    with demo(tmp_path / "demo") as process:
        shown, _ = process.communicate(timeout=900)
    assert process.returncode == 0, shown
    for settings in ("4 of 4 sites", "accuracy after neon", "after paper: published", "whole, head"):
        assert settings in shown
    assert not started_in(tmp_path / "demo")
    more = {"cap": 300, "width": 8, "min_per_client": 10, "alpha": 1.0, "client_lr": 0.1}
    assert finished(tmp_path / "demo" / "run")["model_sha256"] == alone(tmp_path, SITES, more, local_epochs=5.0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["Ctrl-C", "a dead node"])
def test_a_demo_that_is_broken_off_leaves_nobody_behind(how: str, tmp_path: Path) -> None:
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
    assert ("no process is left behind" if how == "Ctrl-C" else "ended with code -9") in shown
    assert not started_in(folder)


def node_in(folder: Path) -> int:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"FLWR_HOME={folder / 'flwr'}".encode() in (path / "environ").read_bytes()
            if ours and b"flower-supernode" in (path / "cmdline").read_bytes():
                return int(path.name)
        except OSError:
            continue
    raise AssertionError("there is no node")
