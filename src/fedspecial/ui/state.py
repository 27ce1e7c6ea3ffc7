"""The state of a run, derived from its files."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedspecial.ui.files import UnreadableFileError, read_json_object, text_of

FILES = ("events.jsonl", "result.json", "finished.json", "failure.json", "config.yaml", "audit.jsonl")
Signature = dict[str, tuple[int, int, int] | None]
"""File of a run → inode, size and time in ns, or None where it does not exist."""
RECENT_SECONDS = 60.0
"""Where locks cannot be asked, a run whose event log is younger than this is taken to be running."""


@dataclass(frozen=True)
class RunState:
    """
    running:  a process is working on the run directory
    finished: result.json exists (finished.json for a federation in which not every domain could be tested)
    failed:   failure.json says with which error the run ended, and the run was not continued since then
    stopped:  none of these; the run can be resumed
    """

    state: Literal["running", "finished", "failed", "stopped"]
    reason: str = ""
    modified: float = 0.0


def signature_of(folder: Path) -> Signature:
    found: Signature = {}
    for name in FILES:
        try:
            status = os.lstat(f"{folder}/{name}")
            found[name] = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            found[name] = None
    return found


def state_of(root: Path, folder: Path, signature: Signature) -> RunState:
    modified = _seconds(signature["events.jsonl"])
    if signature["result.json"] or signature["finished.json"]:
        return RunState("finished", modified=modified)
    running = _is_claimed(folder)
    if running is None:
        running = time.time() - modified < RECENT_SECONDS
    if running:
        return RunState("running", modified=modified)
    if signature["failure.json"] and _seconds(signature["failure.json"]) >= modified:
        try:
            reason = text_of(read_json_object(root, folder / "failure.json").get("message"))
        except UnreadableFileError as error:
            reason = f"failure.json: {error}"
        return RunState("failed", reason, modified)
    return RunState("stopped", modified=modified)


def _seconds(file: tuple[int, int, int] | None) -> float:
    return 0.0 if file is None else round(file[2] / 1e9, 1)


def _is_claimed(folder: Path) -> bool | None:
    """Whether a process has claimed the run directory (`directory.claimed`); None if that cannot be found out.

    A shared lock is taken for an instant. A run that is starting at this moment tries again, so it is not disturbed.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        descriptor: Any = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
