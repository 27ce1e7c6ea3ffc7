"""`fedspecial ui` as a process: what it prints, and how it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from run_factory import write_run

from browser import free_port
from processes import ENVIRONMENT, fresh


@contextmanager
def ui(folder: Path, *options: str, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that a started `fedspecial ui` prints, and its process."""
    command = [sys.executable, "-m", "fedspecial.cli.main", "ui", str(folder), "--no-browser", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**ENVIRONMENT, **environment}
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline(), process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def test_the_address_stands_alone_on_one_line_and_ctrl_c_ends_the_server(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    port = free_port()
    with ui(tmp_path, "--port", str(port), COLUMNS="20", SSH_CONNECTION="") as (line, process):
        assert re.fullmatch(rf"http://127\.0\.0\.1:{port}/[\w-]{{32}}/\n", line)
        with urllib.request.urlopen(line.strip(), timeout=20) as reply:
            assert b"<title>fedspecial</title>" in reply.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_over_ssh_the_command_that_forwards_the_port_is_printed(tmp_path: Path) -> None:
    with ui(tmp_path, SSH_CONNECTION="192.0.2.7 50000 192.0.2.9 2222", USER="ada", LOGNAME="ada") as (line, process):
        port = line.split(":")[2].split("/")[0]
        assert process.stderr is not None
        assert process.stderr.readline() == "To open this address on your own machine, run there:\n"
        assert process.stderr.readline() == f"ssh -p 2222 -N -L {port}:127.0.0.1:{port} ada@192.0.2.9\n"


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    assert "there is no such folder" in fresh("ui", tmp_path / "nothing").error_line
    assert fresh("ui", tmp_path, "--port", "70000").error_line == "--port 70000: expected a number from 0 to 65535"
