"""Finding and stopping processes by an environment variable, which child processes inherit even in other sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

TAG_VARIABLE = "FEDSPECIAL_FEDERATION"
KILL_SECONDS = 10.0  # on a busy machine a killed process may take this long to disappear


def find_tagged(tag: str) -> set[int]:
    """Running processes whose tag is `tag` or starts with `tag` and a slash; empty on systems without /proc."""
    wanted = f"{TAG_VARIABLE}={tag}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ProcessLookupError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            if any(variable == wanted or variable.startswith(wanted + b"/") for variable in variables):
                found.add(int(folder.name))
    return found - {os.getpid()}


def is_running(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def stop_processes(processes: Iterable[subprocess.Popen[bytes]], tag: str, *, signal_number: int, grace: float) -> None:
    """Signal our own children, wait `grace` seconds, then kill them and every process that has the tag."""
    children = list(processes)
    seen = find_tagged(tag) if tag else set()
    for process in children:
        if process.poll() is None:
            process.send_signal(signal_number)
    _wait(children, grace)
    for process in children:
        process.kill()
    deadline = time.monotonic() + max(grace, KILL_SECONDS)
    while tag and time.monotonic() < deadline:
        remaining = find_tagged(tag)
        for pid in remaining:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        seen |= remaining
        # An exiting process loses its environment before it is gone, and may have started a child since the last look.
        if not remaining and not any(is_running(pid) for pid in seen):
            break
        time.sleep(0.02)
    _wait(children, grace)


def _wait(processes: Iterable[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
