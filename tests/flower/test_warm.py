"""The warm process of a SuperNode: the same command for Flower, without its imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedspecial.flower.ops.warm import write_replacement

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the warm process is for Linux")
ORIGINAL = Path(sys.executable).parent / "flwr-clientapp"
# A program that starts the warm process and then waits, as a SuperNode does.
PARENT = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-m", "fedspecial.flower.ops.warm", sys.argv[1]]).pid, flush=True)
time.sleep(600)
"""


def call(command: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(command), *arguments], capture_output=True, text=True, timeout=240, check=False)


def wait_until(ready: object, seconds: float = 240) -> None:
    limit = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_without_a_warm_process_the_replacement_is_the_original(tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.write_text('#!/bin/sh\necho "called with $*"; exit 7\n')
    original.chmod(0o700)
    done = call(write_replacement(tmp_path, original), "--token", "a b")
    assert (done.returncode, done.stdout) == (7, "called with --token a b\n")


@pytest.mark.slow
def test_the_warm_process_answers_as_the_original_and_ends_with_its_parent(tmp_path: Path) -> None:
    folder = tmp_path / "warm"
    folder.mkdir(mode=0o700)
    replacement = write_replacement(folder, tmp_path / "missing")  # so that only the warm process can answer
    with subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        warm = int(parent.stdout.readline())
        try:
            wait_until((folder / "socket").exists)
            for arguments in (["--help"], ["--no-such-argument"]):
                ours, theirs = call(replacement, *arguments), call(ORIGINAL, *arguments)
                assert ours.returncode == theirs.returncode
                assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)
        finally:
            parent.kill()
    wait_until(lambda: not folder.exists())
    with pytest.raises(ProcessLookupError):
        wait_until(lambda: os.kill(warm, 0), 60)  # type: ignore[func-returns-value]


@pytest.mark.slow
def test_a_signal_to_the_replacement_reaches_the_copy_and_the_warm_process_can_be_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "warm"
    folder.mkdir(mode=0o700)
    replacement = write_replacement(folder, tmp_path / "missing")
    command = [sys.executable, "-m", "fedspecial.flower.ops.warm", str(folder)]
    with subprocess.Popen(command) as warm:
        wait_until((folder / "socket").exists)
        # Nothing listens there, so the copy tries again and again.
        waiting = subprocess.Popen(
            [str(replacement), "--runtime-api-address", "127.0.0.1:9", "--insecure", "--token", "x"]
        )
        wait_until(lambda: children_of(warm.pid))
        copies = children_of(warm.pid)
        time.sleep(2)
        waiting.send_signal(signal.SIGTERM)
        waiting.wait(240)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in copies))
        warm.terminate()
        assert warm.wait(60) == 0
    assert not folder.exists()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
