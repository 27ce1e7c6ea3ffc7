"""Finding and ending processes by a mark in their environment, which children inherit wherever they move to."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MARK = "FEDSPECIAL_FEDERATION"
DYING_SECONDS = 10.0  # a killed process is gone as soon as the machine finds time for it


def marked(mark: str) -> set[int]:
    """Living processes whose mark is `mark`, or begins with it and a slash; none where there is no /proc."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ProcessLookupError):
            settings = (folder / "environ").read_bytes().split(b"\0")
            if any(word == wanted or word.startswith(wanted + b"/") for word in settings):
                found.add(int(folder.name))
    return found - {os.getpid()}


def alive(pid: int) -> bool:
    """Whether a process still runs; one that waits to be reaped by its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def end(processes: Iterable[subprocess.Popen[bytes]], mark: str, *, number: int, grace: float) -> None:
    """Send a signal to our own children, give them time, then kill what is left of them and, by `mark`, of theirs."""
    ours = list(processes)
    family = marked(mark) if mark else set()
    for process in ours:
        if process.poll() is None:
            process.send_signal(number)
    _wait(ours, grace)
    for process in ours:
        process.kill()
    limit = time.monotonic() + max(grace, DYING_SECONDS)
    while mark and time.monotonic() < limit:
        left = marked(mark)
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        family |= left
        # A dying process loses its mark before it is gone, and may have had a child since we looked.
        if not left and not any(alive(pid) for pid in family):
            break
        time.sleep(0.02)
    _wait(ours, grace)


def _wait(processes: Iterable[subprocess.Popen[bytes]], seconds: float) -> None:
    limit = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, limit - time.monotonic()))
