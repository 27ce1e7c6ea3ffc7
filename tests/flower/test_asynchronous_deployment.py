"""Real processes in asynchronous mode: one slow site, one that is killed and restarted."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from deployments import deployed, submit, wait_for_end
from flower_fixtures import finished

from fedspecial.core.events import of_kind, read_events
from fedspecial.flower.governance.audit import verify
from fedspecial.flower.ops.pki import NodeKey
from fedspecial.flower.ops.process_tree import find_tagged
from fedspecial.flower.ops.processes import LocalFederation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc"),
]
THREE = ("north", "south", "west")


def steps_of(run: Path) -> list[dict[str, Any]]:
    return of_kind(read_events(run / "events.jsonl"), "server_step") if (run / "events.jsonl").exists() else []


def wait_for_steps(federation: LocalFederation, run: Path, count: int) -> int:
    federation.wait(lambda: len(steps_of(run)) >= count, "run", f"there are no {count} server steps", 300)
    return len(steps_of(run))


def executors(federation: LocalFederation, site: str) -> list[int]:
    """The processes of a site that compute; its SuperNode stays connected without them."""
    pids = find_tagged(f"{federation._tag}/{site}")
    return [pid for pid in pids if b"flower-supernode" not in Path(f"/proc/{pid}/cmdline").read_bytes()]


def restart(federation: LocalFederation, site: str) -> None:
    """The SuperLink refuses a node (code 2004) while its old connection counts as alive, and the node ends."""
    keys = federation.folder / "keys"
    key = NodeKey(site, keys / site, keys / f"{site}.pub")
    config = {"site": site, "state": str(federation.folder / "sites" / site)}
    limit = time.monotonic() + 240
    while time.monotonic() < limit:
        process = federation.start_supernode(site, key=key, config=config)
        time.sleep(15)
        if process.poll() is None:
            return
    raise AssertionError(federation.last_lines(site))


def test_a_slow_and_a_restarted_site_contribute_and_hold_nobody_up(tmp_path: Path) -> None:
    """West computes nothing while the others make eight steps; south is killed and comes back."""
    asynchronous = {"domains": "paper", "mode": "async", "buffer": 1}
    with deployed(tmp_path, THREE) as federation:
        run = submit(federation, THREE, asynchronous, rounds=24, reply_seconds=900.0)
        wait_for_steps(federation, run, 2)
        frozen = executors(federation, "west")
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        federation.stop("south", signal_number=signal.SIGKILL)
        killed = wait_for_steps(federation, run, len(steps_of(run)) + 8)
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        restart(federation, "south")
        wait_for_end(federation, run)
    updates = [{**update, "at": step["round"]} for step in steps_of(run) for update in step["updates"]]
    assert max(update["staleness"] for update in updates if update["client"] == 2) >= 4
    assert any(update["at"] > killed for update in updates if update["client"] == 1)
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact
